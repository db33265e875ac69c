"""A real MLflow server with a database in SQLite, or with files as older ones have, to be killed and started again."""

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

PATIENCE_SECONDS = 240  # for what takes seconds on an idle machine, and took more than 120 s on a busy one
PROGRAMS = Path(__file__).resolve().parents[2] / ".venv-mlflow" / "bin"
"""Where `make test` installs the server: it fits into no environment with the other tools."""

_open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class MlflowServer:
    """Keeps runs and artifacts in `folder`; `with` starts it and ends it."""

    def __init__(self, program, folder, *, files=False):
        self._program, self._folder = program, Path(folder)
        self._store = f"file://{self._folder / 'runs'}" if files else f"sqlite:///{self._folder / 'mlflow.db'}"
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._address = f"127.0.0.1:{server.getsockname()[1]}"
        self.uri = f"http://{self._address}"
        self._running = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        """Start it, and wait until it answers. One that does not answer in time is ended."""
        host, port = self._address.split(":")
        words = [self._program, "server", "--host", host, "--port", port]
        words += ["--backend-store-uri", self._store]
        words += ["--artifacts-destination", self._folder / "artifacts"]
        words += ["--workers", "1"]  # in the options of gunicorn it would be overridden
        words += ["--gunicorn-opts", "--no-control-socket"]  # its usual server needs numpy
        environ = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        with (self._folder / "log").open("ab") as log:
            self._running = subprocess.Popen(words, stdout=log, stderr=log, env=environ, start_new_session=True)
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise

    def kill(self):
        """End it and its children at once, as a crash does."""
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()

    def _wait(self):
        """Wait until it answers."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with _open_url(f"{self.uri}/health", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert self._running.poll() is None, (self._folder / "log").read_text()[-4000:]
                assert time.monotonic() < end, (self._folder / "log").read_text()[-4000:]
                time.sleep(0.1)
