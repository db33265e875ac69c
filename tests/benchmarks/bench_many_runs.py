"""Measure what each further run costs a daemon that serves many, while nothing happens."""

import json
import sys
import time
from pathlib import Path

import psutil
from bench_footprint import STAND_IN
from programs import TASKS, Daemon, Program, environ, scratch, wait_until
from table import Figure, Table

HOW = """A daemon with default settings serves runs whose directories hold no checkpoint yet. Its worker processes are
stand-ins that import nothing, so that the numbers are the daemon's own. Share of one core and resident memory of the
daemon over the seconds after all runs are served; for each further run, the difference to one run."""
COLUMNS = ("runs", "resident", "for each further run", "idle share of a core", "for each further run", "threads")
RUNS = (1, 11, 51)


class ManyRuns(Daemon):
    """A daemon of all runs below a folder."""

    def __init__(self, folder, stand_in):
        self._address = None
        settings = {
            "runs": f"{folder}/*/ckpts",
            "task": f"{TASKS / 'dense.py'}:task",
            "http": "127.0.0.1:0",
            "log_format": "json",
            "worker_logs": folder.parent / "logs",
            "worker_python": stand_in,
            "node": "worker-0",
            "role": "worker",
            "host": "127.0.0.1",
        }
        variables = {f"SIDECAR_{name.upper()}": str(value) for name, value in settings.items()}
        words = [Path(sys.executable).with_name("sidecar"), "run"]
        Program.__init__(self, words, folder.parent / "daemon", name="daemon", env=environ(**variables))

    def serves(self, count):
        """Return whether so many runs are ready."""
        return sum(run["ready"] for run in json.loads(self.get("/api/status"))["runs"]) == count


def measure(quick):
    found = [_measure(count, 5.0 if quick else 60.0) for count in RUNS]
    resident_of_one, share_of_one, _ = found[0]
    rows = []
    for count, (resident, share, threads) in zip(RUNS, found, strict=True):
        more = max(1, count - 1)
        rows.append(
            (
                count,
                f"{resident / 1e6:.1f} MB",
                f"{(resident - resident_of_one) / more / 1e6:.2f} MB" if count > 1 else "",
                f"{share:.2%}",
                f"{(share - share_of_one) / more:.3%}" if count > 1 else "",
                threads,
            )
        )
    resident, share, _ = found[-1]
    more = RUNS[-1] - 1
    figures = [
        Figure("memory of each further run", (resident - resident_of_one) / more / 1e6, 3, unit=" MB"),
        Figure("idle share of a core of each further run", (share - share_of_one) / more * 100, 0.5, unit=" %"),
    ]
    return Table("Many runs: what each idle run costs one daemon", HOW, COLUMNS, rows, figures)


def _measure(count, seconds):
    """Return resident bytes, the share of a core, and the number of threads of a daemon that serves so many runs."""
    with scratch() as folder:
        stand_in = folder / "python"
        stand_in.write_text(STAND_IN)
        stand_in.chmod(0o755)
        for number in range(count):
            (folder / "shared" / f"run-{number:02}" / "ckpts").mkdir(parents=True)
        with ManyRuns(folder / "shared", stand_in) as daemon:
            wait_until(lambda: daemon.serves(count), lambda: f"{count} runs: {daemon.said()}", pause=0.5)
            process = psutil.Process(daemon.process.pid)
            time.sleep(seconds / 2)
            before, begin = process.cpu_times(), time.monotonic()
            time.sleep(seconds)
            after, took = process.cpu_times(), time.monotonic() - begin
            share = (after.user + after.system - before.user - before.system) / took
            return process.memory_info().rss, share, process.num_threads()
