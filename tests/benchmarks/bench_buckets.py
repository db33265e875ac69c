"""Measure what checkpoints in a bucket cost: requests, bytes, memory, and the time of a command.

The server is a program in this process on loopback, which counts its requests. Nothing is measured of a real cloud.
"""

import hashlib
import io
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
from bench_footprint import STAND_IN
from object_servers import ObjectServer
from programs import TASKS, Daemon, Program, environ, scratch, wait_until
from table import Figure, Table

from sidecar.commands.from_settings import make_catalog
from sidecar.retention.pins.pin import pin
from sidecar.settings import Settings
from sidecar.system.clock import SystemClock

HOW = """A daemon with default settings watches files as `torch.save` writes them, which exist before it (`--start
new`): in a directory, in a bucket, and in a bucket that holds the state, too. Its worker processes are stand-ins that
import nothing. Requests that the server counts, of one node: in an hour without work, from those of a part of it; for
each checkpoint until it is found; and the bytes that finding and pinning one takes, as a multiple of its own. Resident
memory once the daemon is idle. Seconds of `sidecar status`, the fastest of ten, while each answer of the server takes
50 ms, with the start of Python."""
COLUMNS = ("checkpoints in", "count", "requests until found", "requests an hour", "resident MB", "status s")
COUNT = 20


def measure(quick):
    idle_seconds, model_bytes = (20.0, 40 << 20) if quick else (120.0, 193 << 20)
    with scratch() as folder, ObjectServer() as server:
        stand_in = folder / "python"
        stand_in.write_text(STAND_IN)
        stand_in.chmod(0o755)
        directory = folder / "ckpts"
        directory.mkdir()
        for step in range(COUNT):
            content = _model(1 << 20, step)
            (directory / f"model-{step}.pt").write_bytes(content)
            server.objects[f"ckpts/model-{step}.pt"] = content
        local = _row(folder, directory, stand_in, server, idle_seconds)
        bucket = _row(folder, "s3://b/ckpts", stand_in, server, idle_seconds)
        state = _row(folder, "s3://b/ckpts", stand_in, server, idle_seconds, "s3://b/state")
        ratio = _bytes_read(folder, server, model_bytes)
    figures = [
        Figure("requests of an idle node", bucket[3], 1500, unit=" an hour"),
        Figure("requests for one checkpoint in one file", bucket[2] / COUNT, 3),
        Figure("bytes read to find and pin a checkpoint", ratio, 1.02, unit=" times its own"),
        Figure("memory more than with a directory", bucket[4] - local[4], 12, unit=" MB"),
        Figure("`sidecar status` at 50 ms", bucket[5], 1, unit=" s"),
        Figure("requests of an idle node with the state in a bucket", state[3], 1500, unit=" an hour"),
        Figure("`sidecar status` with the state in a bucket", state[5], 1, unit=" s"),
    ]
    return Table("Buckets: requests, bytes and memory", HOW, COLUMNS, [local, bucket, state], figures)


def _row(folder, place, stand_in, server, idle_seconds, state=None):
    own = {"XDG_STATE_HOME": str(folder / "state"), "SIDECAR_FORMATS": "torch_zip", **server.environment}
    own |= {} if state is None else {"SIDECAR_STATE_DIR": state}
    told = {"http": "127.0.0.1:0", "log_format": "json", "worker_python": stand_in, "worker_logs": folder / "logs"}
    variables = own | {f"SIDECAR_{name.upper()}": str(value) for name, value in told.items()}
    name = "a directory" if not isinstance(place, str) else "a bucket" if state is None else "a bucket, and the state"
    where = folder / name
    sidecar = Path(sys.executable).with_name("sidecar")
    words = [sidecar, "run", place, "--task", f"{TASKS / 'dense.py'}:task", "--start", "new", "--role", "worker"]
    words += ["--node", "worker-0", "--host", "127.0.0.1"]
    with _Watching(words, where, name="daemon", env=environ(**variables)) as daemon:
        wait_until(lambda: _skipped(daemon) == COUNT, daemon.said)
        time.sleep(12)  # everything is settled, and the next listing is over
        found = sum("list-type" not in query for _, query, _ in server.requests)
        before = len(server.requests)
        time.sleep(idle_seconds)
        hourly = (len(server.requests) - before) * 3600 / idle_seconds
        resident = psutil.Process(daemon.process.pid).memory_info().rss / 1e6
        server.latency_seconds = 0.05
        seconds = min(_seconds([sidecar, "status", place], environ(**own)) for _ in range(10))
        server.latency_seconds = 0.0
    server.requests.clear()
    return name, COUNT, found, hourly, resident, seconds


def _seconds(command, env):
    begin = time.monotonic()
    subprocess.run(command, env=env, check=True, capture_output=True)
    return time.monotonic() - begin


class _Watching(Daemon):
    """A daemon whose directory may be a URL."""

    def __init__(self, words, folder, **more):
        self._address = None
        Program.__init__(self, words, folder, **more)


def _skipped(daemon):
    try:
        text = daemon.get("/metrics")
    except ConnectionError:
        return None
    lines = [line for line in text.splitlines() if line.startswith("sidecar_checkpoints_skipped_total{")]
    return float(lines[0].rpartition(" ")[2]) if lines else None


def _bytes_read(folder, server, model_bytes):
    """Return the bytes that the server sent for one checkpoint, as a multiple of the checkpoint's."""
    server.objects.clear()
    server.objects["one/model-1.pt"] = _model(model_bytes, 1)
    os.environ.update(server.environment)
    settings = Settings(checkpoint_dir="s3://b/one", state_dir=folder / "one", framework="torch")
    catalog, before = make_catalog(settings, SystemClock()), server.sent
    (found,) = catalog.scan().found
    pin(found, folder / "one" / "one" / "pins")
    return (server.sent - before) / len(server.objects["one/model-1.pt"])


def _model(size, step):
    """Return a file as `torch.save` writes it: an archive of a small pickle and one storage of `size` bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00X\x04\x00\x00\x00stepq\x01K" + bytes([step]) + b"s.")
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/data/0", hashlib.sha256(bytes([step])).digest() * (size // 32))
    return content.getvalue()
