"""Measure what a daemon costs while nothing happens: time until it answers, memory, and work per second."""

import socket
import subprocess
import sys
import time

import psutil
from programs import Daemon, environ, scratch, wait_until
from table import Figure, Table

HOW = """A daemon with default settings beside 200 damaged checkpoints, which it has given up: for the first minute each
sweep reads them again, because they may still be written. Its worker processes are
stand-ins that import nothing, so that the numbers are the daemon's own. From exec to the first answer of
`/healthz`: the best of some starts, as others use the machine, too. Share of one core and resident memory: over the
seconds after it became idle. The rows below say where that goes: processor time and memory of a process that imports
so much and ends, the best of some, each with all above it. *Shared* is memory of files, such as the interpreter and
OpenSSL, which all processes of a machine map once."""
COLUMNS = ("", "measured", "over")
IMPORTS = {
    "the interpreter": "pass",
    "and pydantic, with the declared settings": "import sidecar.settings",
    "and typer, with the commands": "import sidecar.commands.cli",
    "and the daemon's code": "import sidecar.commands.serve, sidecar.commands.served_run",
}
_USED = """
import time
status = open("/proc/self/status").read().split()
resident, shared = (int(status[status.index(name) + 1]) / 1e3 * 1.024 for name in ("VmRSS:", "RssFile:"))
print(time.process_time(), resident, shared)
"""
LYING_THERE = 200
GIVEN_UP_SECONDS = 75  # corrupt_after_seconds, and the plan that settles them
STAND_IN = f"""#!{sys.executable}
import os, sys
from sidecar.protocol.messages import Check, Checked, Ready, decode, encode
reports = int(sys.argv[sys.argv.index("--reports") + 1])
os.write(reports, encode(Ready("tensorflow", "0")))
for line in sys.stdin.buffer:
    if isinstance(decode(line), Check):
        os.write(reports, encode(Checked("0" * 64, ("test",), {{}})))
"""


def measure(quick):
    starts, idle_seconds = (1, 5.0) if quick else (5, 30.0)
    with scratch() as folder:
        stand_in = folder / "python"
        stand_in.write_text(STAND_IN)
        stand_in.chmod(0o755)
        checkpoints = folder / "ckpts"
        checkpoints.mkdir()
        for number in range(LYING_THERE):
            (checkpoints / f"ckpt-{number}.index").write_bytes(b"torn" * 20)
        seconds, computed = map(min, zip(*(_start(checkpoints, stand_in) for _ in range(starts)), strict=True))
        with Daemon(checkpoints, "dense.py", worker_python=stand_in) as daemon:
            daemon.is_standing_by()
            if not quick:
                time.sleep(GIVEN_UP_SECONDS)
            share, resident = _idle(daemon, idle_seconds)
    rows = [
        ("exec to /healthz", f"{seconds:.2f} s, {computed:.2f} s of CPU", f"{starts} starts"),
        ("idle", f"{share:.2%} of a core", f"{idle_seconds:.0f} s"),
        ("resident", f"{resident / 1e6:.0f} MB", ""),
        *_imports(starts),
    ]
    figures = [
        Figure("exec to /healthz", seconds, 1.0, unit=" s"),
        Figure("CPU until /healthz", computed, 0.5, unit=" s"),
        Figure("idle share of a core", share * 100, 0.5, unit=" %"),
        Figure("resident", resident / 1e6, 70, unit=" MB"),
    ]
    return Table("Footprint: a daemon that has nothing to do", HOW, COLUMNS, rows, figures)


def _start(checkpoints, stand_in):
    """Return the seconds until a daemon answers, and what it computed until then."""
    begin = time.monotonic()
    with Daemon(checkpoints, "dense.py", worker_python=stand_in, http=f"127.0.0.1:{_free_port()}") as daemon:
        seconds = wait_until(lambda: _answers(daemon) and time.monotonic() - begin, "/healthz", pause=0.01)
        used = psutil.Process(daemon.process.pid).cpu_times()
        return seconds, used.user + used.system


def _imports(starts):
    """Yield a row for each part of what a daemon imports, with all parts above it."""
    code = ""
    for name, imports in IMPORTS.items():
        code += f"{imports}\n"
        command = [sys.executable, "-c", code + _USED]
        told = [
            subprocess.run(command, capture_output=True, text=True, check=True, env=environ()).stdout
            for _ in range(starts)
        ]
        seconds, resident, shared = min([float(word) for word in each.split()] for each in told)
        yield name, f"{seconds:.2f} s of CPU, {resident:.0f} MB, {shared:.0f} MB of it shared", f"{starts} processes"


def _answers(daemon):
    try:
        return daemon.get("/healthz") == "ok\n"
    except ConnectionError:
        return False


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _idle(daemon, idle_seconds):
    process = psutil.Process(daemon.process.pid)
    before, begin = process.cpu_times(), time.monotonic()
    time.sleep(idle_seconds)
    after, seconds = process.cpu_times(), time.monotonic() - begin
    return (after.user + after.system - before.user - before.system) / seconds, process.memory_info().rss
