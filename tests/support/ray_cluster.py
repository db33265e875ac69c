"""A real Ray cluster on loopback addresses, with the login by token: one head, and nodes that a test kills or hangs."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

PROGRAMS = Path(__file__).resolve().parents[2] / ".venv-ray" / "bin"
"""Where `make test` installs Ray. Its packages of a framework are those of the environment of the tests."""

PATIENCE_SECONDS = 600
STARTED = "Ray runtime started."
STORE_BYTES = 80_000_000  # the least that Ray takes


class RayNode:
    """One raylet with its address and labels, and the processes that it started."""

    def __init__(self, address, process):
        self.address, self._process = address, process

    def processes(self, *words):
        """Return the live processes of the node; with `words`, those whose command has them."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            found = [root, *root.children(recursive=True)]
        return [each for each in found if not words or _is_called(each, words)]

    def signal(self, number):
        """Send a signal to all its processes, the parents first."""
        for each in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def kill(self):
        """End it as a power failure does."""
        found = self.processes()
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()


class RayCluster:
    """A head without processors, and nodes with two each; `with` starts the head and ends everything."""

    def __init__(self):
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.token = self._folder / "token"
        self.token.write_text(secrets.token_hex(16))
        self.token.chmod(0o600)
        with socket.create_server(("127.0.0.2", 0)) as server:
            self.address = f"127.0.0.2:{server.getsockname()[1]}"
        self.nodes = {}

    def __enter__(self):
        try:
            self.start_head()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def start_head(self):
        """Start the head, and wait until it answers."""
        port = self.address.partition(":")[2]
        more = (f"--port={port}", f"--temp-dir={self._folder}", "--include-dashboard=false", "--num-cpus=0")
        self._start("127.0.0.2", "--head", *more)

    def add(self, *addresses, **labels):
        """Start nodes with these labels, and wait until they have joined."""
        told = ",".join(f"{name}={value}" for name, value in labels.items())
        for address in addresses:
            self._start(address, f"--address={self.address}", "--num-cpus=2", f"--labels={told}")

    def log(self):
        """Return what the nodes printed."""
        log = self._folder / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def close(self):
        """End all processes, and remove what they wrote."""
        for node in self.nodes.values():
            node.signal(signal.SIGCONT)
            node.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, address, *words):
        """Start a node and wait until it runs. Ray gives it 30 s, which are short on a busy machine: start it again.

        A node that is started before the head is complete waits for ever.
        """
        environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token), "RAY_ENABLE_AUTO_CONNECT": "0"}
        environ |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        usual = (f"--node-ip-address={address}", "--min-worker-port=0", "--max-worker-port=0", "--block")
        command = (PROGRAMS / "ray", "start", *usual, f"--object-store-memory={STORE_BYTES}", *words)
        started, end = self.log().count(STARTED), time.monotonic() + PATIENCE_SECONDS
        process = None
        while self.log().count(STARTED) == started:
            assert time.monotonic() < end, self.log()
            if process is None or process.poll() is not None:
                with (self._folder / "log").open("ab") as log:
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, cwd=self._folder
                    )
                self.nodes[address] = RayNode(address, process)
            time.sleep(0.1)


def _is_called(process, words):
    with contextlib.suppress(psutil.NoSuchProcess):
        command = " ".join(process.cmdline())
        return all(word in command for word in words)
    return False
