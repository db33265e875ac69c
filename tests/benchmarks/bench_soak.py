"""A week in ten minutes: as many evaluations as two real daemons manage, and what the daemons hold afterwards."""

import contextlib
import os
import sys
import time
from pathlib import Path

import psutil
from programs import Daemon, scratch
from table import Figure, Table

HOW = """Two daemons of one run, each with one worker process of a task without a framework whose model is one number:
an evaluation costs little more than the daemons' own work. A trainer keeps eight checkpoints waiting and removes those
that were evaluated, until there are 20,000 evaluations: ten minutes of two free cores. After 90 minutes, or after
Ctrl-C, what was measured until then counts. Resident memory, descriptors and threads of the publisher, which also
writes views and snapshots, and of the other daemon; files and folders of the state directory. Each evaluation is
compared with the number of its model. *seconds each* is the time for each evaluation since the row above, and *CPU ms
each* what both daemons computed for it."""
COLUMNS = (
    "evaluations",
    "after s",
    "seconds each",
    "CPU ms each",
    "publisher MB",
    "other MB",
    "descriptors",
    "threads",
    "state MB",
    "inodes",
)
WAITING = 8
SETTINGS = {
    "framework": "python",
    "checkpoint_pattern": "model-*",
    "quiet_seconds": "0.2",
    "standby": "false",
}


def measure(quick):
    evaluations, step, seconds = (200, 50, 120.0) if quick else (20_000, 1_000, 5400.0)
    with scratch() as folder, contextlib.ExitStack() as stack:
        checkpoints = folder / "ckpts"
        nodes = [
            stack.enter_context(Daemon(checkpoints, "tiny.py", node=f"worker-{number}", **SETTINGS))
            for number in range(2)
        ]
        for daemon in nodes:
            daemon.is_standing_by(2)
        rows = _soak(checkpoints, nodes, evaluations, step, seconds)
        _check(nodes[0])
    first, last = (dict(zip(COLUMNS, row, strict=True)) for row in (rows[0], rows[-1]))
    count = first["evaluations"]
    growth = last["publisher MB"] - first["publisher MB"]
    figures = [
        Figure("evaluations", last["evaluations"], evaluations, sense="at least"),
        Figure(f"publisher grows after the first {count:,}", growth, 5, unit=" MB"),
        Figure("and by evaluation", 1e6 * growth / max(1, last["evaluations"] - count), 260, unit=" bytes"),
        Figure("descriptors more than then", last["descriptors"] - first["descriptors"], 4),
        Figure("threads more than then", last["threads"] - first["threads"], 1),
    ]
    return Table("Soak: thousands of evaluations", HOW, COLUMNS, rows, figures)


def _soak(checkpoints, nodes, evaluations, step, seconds):
    """Feed the daemons; return a row for every `step` evaluations, and one for the end. Ctrl-C is the end, too."""
    rows = _Rows(nodes)
    with contextlib.suppress(KeyboardInterrupt):
        saved, outcomes = 0, nodes[0].run_dir / "outcomes"
        while time.monotonic() < rows.begin + seconds and rows.count < evaluations:
            while rows.count < saved and (outcomes / f"{rows.count + 1:012d}.json").exists():
                rows.count += 1
                if rows.count % step == 0:
                    rows.add()
            while saved < rows.count + WAITING:
                saved += 1
                new = checkpoints / f".new-{saved}"
                new.write_text(str(saved))
                new.rename(checkpoints / f"model-{saved}")
                if saved > 2 * WAITING:
                    (checkpoints / f"model-{saved - 2 * WAITING}").unlink()
            time.sleep(0.02)
    rows.add()
    return rows.rows


class _Rows:
    """Hold what was measured, and say each row as soon as it is there."""

    def __init__(self, nodes):
        self.run_dir = nodes[0].run_dir
        self.processes = [psutil.Process(daemon.process.pid) for daemon in nodes]
        self.begin, self.count, self.rows = time.monotonic(), 0, []
        self._before = 0, 0.0, self._computed()

    def add(self):
        """Measure a row, if there were evaluations since the last one."""
        now = self.count, time.monotonic() - self.begin, self._computed()
        count, seconds, computed = (new - old for new, old in zip(now, self._before, strict=True))
        if not count:
            return
        self._before = now
        publisher, _ = self.processes
        held = [process.memory_info().rss / 1e6 for process in self.processes]
        size, inodes = _used(self.run_dir)
        each = seconds / count, 1000 * computed / count
        self.rows.append((*now[:2], *each, *held, publisher.num_fds(), publisher.num_threads(), size / 1e6, inodes))
        print(self.rows[-1], file=sys.stderr, flush=True)

    def _computed(self):
        return sum(times.user + times.system for times in (process.cpu_times() for process in self.processes))


def _used(folder):
    """Bytes on the disk and inodes below a folder, which daemons change meanwhile."""
    size = inodes = 0
    for path, folders, names in os.walk(folder):
        inodes += len(folders) + len(names)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += (Path(path) / name).stat().st_blocks * 512
    return size, inodes


def _check(daemon):
    """Raise unless every evaluation has the number of its model: all examples are right for an even one, else none."""
    for row in daemon.successes():
        if row["metrics"]["test"]["accuracy"]["value"] != float(row["step"] % 2 == 0):
            raise RuntimeError(f"wrong: {row}")
