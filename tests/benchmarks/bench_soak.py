"""A week in ten minutes: as many evaluations as two real daemons manage, and what the daemons hold afterwards."""

import contextlib
import json
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
Ctrl-C, what was measured until then counts. With `--progress FOLDER`, another run goes on behind that: a new *part*,
with new daemons. Resident memory, descriptors and threads of the publisher, which also writes views and snapshots, and
of the other daemon; files and folders of the state directory. Growth is that after the first 1,000 evaluations of each
part; a daemon fills what it remembers for a while until about 2,000, so parts should be longer. Each evaluation is
compared with the number of its model. *seconds each* is the time for each evaluation since the row above, and *CPU ms
each* what both daemons computed for it."""
COLUMNS = (
    "part",
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
_SAVED_EVERY = 100  # evaluations


def measure(quick, progress=None):
    evaluations, step, first, seconds = (200, 50, 50, 120.0) if quick else (20_000, 500, 1_000, 5400.0)
    with contextlib.ExitStack() as stack:
        folder = progress or stack.enter_context(scratch())
        checkpoints = folder / "ckpts"
        nodes = [
            stack.enter_context(Daemon(checkpoints, "tiny.py", node=f"worker-{number}", **SETTINGS))
            for number in range(2)
        ]
        for daemon in nodes:
            daemon.is_standing_by(2)
        rows = _soak(checkpoints, _Rows(nodes, folder / "soak.json"), evaluations, step, seconds)
        _check(nodes[0])
    spans = _spans([dict(zip(COLUMNS, row, strict=True)) for row in rows], first)

    def grown(column):
        return [last[column] - before[column] for before, last in spans]

    growth, count = sum(grown("publisher MB")), sum(grown("evaluations"))
    figures = [Figure("evaluations", rows[-1][1], evaluations, sense="at least")]
    if count:
        figures += [
            Figure(f"publisher grows in {count:,} of them", growth, 5, unit=" MB"),
            Figure("and by evaluation", 1e6 * growth / count, 260, unit=" bytes"),
            Figure("descriptors more than before them", max(grown("descriptors")), 4),
            Figure("threads more than before them", max(grown("threads")), 1),
        ]
    return Table("Soak: thousands of evaluations", HOW, COLUMNS, rows, figures)


def _spans(rows, first):
    """Return for each part the row after its first evaluations, and its last row, if there is one behind that."""
    spans, before = [], 0
    for part in dict.fromkeys(row["part"] for row in rows):
        own = [row for row in rows if row["part"] == part]
        warm = [row for row in own if row["evaluations"] >= before + first]
        spans += [(warm[0], warm[-1])] if warm else []
        before = own[-1]["evaluations"]
    return spans


def _soak(checkpoints, rows, evaluations, step, seconds):
    """Feed the daemons; return a row for every `step` evaluations, and one for the end. Ctrl-C is the end, too."""
    with contextlib.suppress(KeyboardInterrupt):
        saved = max((int(path.name.partition("-")[2]) for path in checkpoints.glob("model-*")), default=0)
        while time.monotonic() < rows.begin + seconds and rows.count < evaluations:
            while rows.count < saved and rows.follow():
                if rows.count % step == 0:
                    rows.add()
                elif rows.count % _SAVED_EVERY == 0:
                    rows.save()
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
    """Hold what was measured, say each row as soon as it is there, and go on behind what an earlier run saved."""

    def __init__(self, nodes, path):
        self.run_dir, self.path = nodes[0].run_dir, path
        self.processes = [psutil.Process(daemon.process.pid) for daemon in nodes]
        self.plans, self.count, self.rows = json.loads(path.read_text()) if path.exists() else (0, 0, [])
        self.part = self.rows[-1][0] + 1 if self.rows else 1
        self.begin = time.monotonic()
        self._before = self.count, 0.0, self._computed()

    def follow(self):
        """Count the next plan that is closed, if there is one; whether it was an evaluation."""
        try:
            outcome = json.loads((self.run_dir / "outcomes" / f"{self.plans + 1:012d}.json").read_text())
        except FileNotFoundError:
            return False
        self.plans += 1
        self.count += outcome["status"] == "succeeded"  # an earlier part may have ended in one
        return True

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
        more = publisher.num_fds(), publisher.num_threads(), size / 1e6, inodes
        self.rows.append((self.part, *now[:2], *each, *held, *more))
        print(self.rows[-1], file=sys.stderr, flush=True)
        self.save()

    def save(self):
        """Save what was measured for a run that goes on behind it."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps((self.plans, self.count, self.rows)))
        new.replace(self.path)

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
