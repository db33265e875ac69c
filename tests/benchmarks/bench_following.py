"""Measure what two real daemons hold after 20,000 evaluations that another program writes into their journal."""

import json
import time

import psutil
from bench_soak import SETTINGS
from long_journal import records
from programs import Daemon, scratch, wait_until
from table import Figure, Table

from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.codec import dumps

HOW = """Two daemons of one run with warm worker processes, and no checkpoints. This program writes plans and outcomes
of 20,000 successful evaluations with one metric into the journal, one after the other, and waits every 100 until both
daemons have read them: the *soak* without what evaluates, which takes nearly all of its time. The publisher also writes
views, snapshots and segments. Resident memory, descriptors and threads, and the processor time of both daemons for each
evaluation since the row above. Growth is that after the first 1,000."""
COLUMNS = ("evaluations", "after s", "CPU ms each", "publisher MB", "other MB", "descriptors", "threads")
_TOGETHER = 100  # evaluations


def measure(quick):
    evaluations, step, first = (400, 100, 100) if quick else (20_000, 1_000, 1_000)
    with scratch() as folder:
        checkpoints = folder / "ckpts"
        with (
            Daemon(checkpoints, "tiny.py", node="worker-0", **SETTINGS) as publisher,
            Daemon(checkpoints, "tiny.py", node="worker-1", **SETTINGS) as other,
        ):
            publisher.is_standing_by(2)
            rows = _follow((publisher, other), evaluations, step)
    warm = next(row for row in rows if row[0] >= first)
    last = rows[-1]
    growth = last[3] - warm[3]
    figures = [
        Figure(f"publisher grows in {last[0] - warm[0]:,} of them", growth, 5, unit=" MB"),
        Figure("and by evaluation", 1e6 * growth / (last[0] - warm[0]), 260, unit=" bytes"),
        Figure("descriptors more than before them", last[5] - warm[5], 4),
        Figure("threads more than before them", last[6] - warm[6], 1),
    ]
    return Table("Following: a journal of thousands of evaluations", HOW, COLUMNS, rows, figures)


def _follow(daemons, evaluations, step):
    """Write the journal; return a row for every `step` evaluations."""
    run_dir, storage, rows = daemons[0].run_dir, PosixStorage(daemons[0].run_dir), []
    run = json.loads((run_dir / "run.json").read_text())["run"]
    processes = [psutil.Process(daemon.process.pid) for daemon in daemons]
    begin, before = time.monotonic(), _computed(processes)
    for number in range(1, evaluations + 1):
        plan, outcome = records(number, run, metrics=1)
        # The outcome is there before its plan, so that no daemon takes part in it.
        storage.replace(outcome_path(number), dumps(outcome))
        storage.replace(plan_path(number), dumps(plan))
        if number % _TOGETHER == 0:
            for daemon in daemons:
                wait_until(lambda: _has_read(daemon, number), f"evaluation {number}: {daemon.said()}")  # noqa: B023
        if number % step == 0:
            computed = _computed(processes)
            held = [process.memory_info().rss / 1e6 for process in processes]
            publisher = processes[0]
            each = 1000 * (computed - before) / step
            rows.append((number, time.monotonic() - begin, each, *held, publisher.num_fds(), publisher.num_threads()))
            before = computed
    return rows


def _has_read(daemon, number):
    return json.loads(daemon.get("/api/status"))["evaluated"] >= number


def _computed(processes):
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))
