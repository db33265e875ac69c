"""What a daemon costs while nothing happens: time until it answers, memory, and work per second.

Its worker processes are stand-ins that import nothing, so that the numbers are the daemon's own and no TensorFlow
disturbs the clock. All settings that cost time have their defaults.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

STARTS = 3
START_SECONDS = 1.0
IDLE_SECONDS = 20.0
IDLE_SHARE = 0.005  # of one core
RESIDENT_BYTES = 70_000_000
LYING_THERE = 200  # files of checkpoints that will never be whole

STAND_IN = f"""#!{sys.executable}
import os, sys
from sidecar.group.messages import Check, Checked, Ready, decode, encode
reports = int(sys.argv[sys.argv.index("--reports") + 1])
os.write(reports, encode(Ready("tensorflow", "0")))
for line in sys.stdin.buffer:
    if isinstance(decode(line), Check):
        os.write(reports, encode(Checked("0" * 64, ("test",))))
"""


@pytest.fixture
def start(tmp_path):
    """Starts a daemon on a free port, beside checkpoints that are never evaluated; returns it and a getter."""
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    folder = tmp_path / "ckpts"
    folder.mkdir()
    for number in range(LYING_THERE):
        (folder / f"ckpt-{number}.index").write_bytes(b"torn" * 20)
    running = []

    def run():
        port = _free_port()
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SIDECAR_", "KUBERNETES_", "TF_CONFIG", "NOTIFY_SOCKET", "SLURM_", "RANK"))
        }
        words = ["run", "--checkpoint-dir", folder, "--task", "any.py:task", "--role", "worker"]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                [Path(sys.executable).with_name("sidecar"), *words, "--http", f"127.0.0.1:{port}"],
                stderr=log,
                env=environ | {"SIDECAR_WORKER_PYTHON": str(python), "SIDECAR_WORKER_LOGS": str(tmp_path / "logs")},
                cwd=tmp_path,
            )
        running.append(process)
        return process, lambda path: _get(port, path)

    yield run
    for process in running:
        process.kill()
        process.wait()


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _get(port, path):
    """Status and body, or nothing while nobody listens."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except ConnectionError:
            return None


def _wait(condition, what, seconds=60.0, pause=0.1):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(pause)
    return found


def test_health_is_served_within_a_second(start):
    """From exec to the first answer of /healthz; the best of three, as others use this machine too."""
    found = []
    for _ in range(STARTS):
        begin = time.perf_counter()
        process, get = start()
        answer = _wait(lambda get=get: get("/healthz"), "/healthz", pause=0.002)
        found.append(time.perf_counter() - begin)
        assert answer == (200, "ok\n")
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    print(f"\nexec to /healthz: best {min(found):.2f} s of {STARTS}, allowed {START_SECONDS} s")
    assert min(found) < START_SECONDS, f"seconds: {found}"


def test_an_idle_daemon_needs_next_to_nothing(start):
    """Less than 0.5 % of one core over 20 seconds, and less than 70 MB, with 200 torn checkpoints lying there."""
    process, get = start()

    def is_idle():
        status = json.loads((get("/api/status") or (0, "{}"))[1])
        return status.get("ready") and [each["state"] for each in status["workers"]] == ["standby"]

    _wait(is_idle, "an idle daemon")
    daemon = psutil.Process(process.pid)
    before, begin = daemon.cpu_times(), time.monotonic()
    _wait(lambda: time.monotonic() - begin >= IDLE_SECONDS, "time to pass", pause=0.5)
    after, seconds = daemon.cpu_times(), time.monotonic() - begin
    share = (after.user + after.system - before.user - before.system) / seconds
    resident = daemon.memory_info().rss
    print(f"\nidle: {share:.2%} of a core, allowed {IDLE_SHARE:.2%}")
    print(f"resident: {resident / 1e6:.0f} MB, allowed {RESIDENT_BYTES / 1e6:.0f} MB")
    assert process.poll() is None
    assert share < IDLE_SHARE
    assert resident < RESIDENT_BYTES
