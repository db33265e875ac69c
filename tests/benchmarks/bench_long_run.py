"""What a journal of many plans costs a daemon: to start, to hold, and to do nothing."""

import time

import psutil
from programs import Daemon, scratch, wait_until
from table import Figure, Table

from sidecar.coordination import snapshot_store
from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.coordination.journal_state import EntryLog, JournalState
from sidecar.coordination.run import open_run
from sidecar.coordination.snapshot import RECENT, take
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Checkpoint, EvalData, Member, Outcome, Plan, Result, Value, group_id

HOW = """A journal of plans that all succeeded, each with the result of an eval set with three metrics and a group of
two, written as daemons write it. A daemon starts beside it (on a chief, so that no worker process is part of the
numbers) without and with a snapshot, which a publisher writes every 200 plans: here it is 150 plans old. Seconds from
exec until the journal is read; resident memory and share of a core over the seconds after that."""
COLUMNS = ("", "plans", "snapshot MB", "read after s", "resident MB", "share of a core")


def measure(quick):
    plans, idle_seconds = (2_000, 3.0) if quick else (20_000, 20.0)
    rows = [_row("short journal, no snapshot", 10, False, idle_seconds)]
    rows.append(_row("long journal, no snapshot", plans, False, idle_seconds))
    rows.append(_row("long journal, snapshot", plans, True, idle_seconds))
    figures = [
        Figure("read after, long journal and snapshot, beyond the short one", rows[2][3] - rows[0][3], 1.0, unit=" s"),
        Figure("resident, long journal and snapshot", rows[2][4], 70, unit=" MB"),
        Figure("share of a core, long journal and snapshot, percent", 100 * rows[2][5], 1.0, unit=" %"),
    ]
    return Table("A long run: what its journal costs", HOW, COLUMNS, rows, figures)


def _row(name, plans, with_snapshot, idle_seconds):
    with scratch() as folder:
        checkpoints = folder / "ckpts"
        storage = PosixStorage(checkpoints / ".sidecar" / "ckpts")
        _write(storage, plans, with_snapshot)
        found = storage.read(snapshot_store.PATH)
        begin = time.monotonic()
        with Daemon(checkpoints, "dense.py", "--role", "chief") as daemon:
            seconds = wait_until(lambda: daemon.logged("journal_read") and time.monotonic() - begin, "the journal")
            process = psutil.Process(daemon.process.pid)
            time.sleep(2)
            before = process.cpu_times()
            time.sleep(idle_seconds)
            after = process.cpu_times()
            share = (after.user + after.system - before.user - before.system) / idle_seconds
            return name, plans, len(found or b"") / 1e6, seconds, process.memory_info().rss / 1e6, share


def _write(storage, plans, with_snapshot):
    """Whole files, but not synced one by one: that would take minutes, and nobody reads them meanwhile."""
    run, history = open_run(storage, 0.0), JournalState(log=EntryLog(keep=RECENT))
    taken = None
    for number in range(1, plans + 1):
        for record in records(number, run):
            path = plan_path(number) if isinstance(record, Plan) else outcome_path(number)
            storage.replace(path, dumps(record))
            history.apply(record)
        if number == plans - 150:
            taken = take(history, run)
    if with_snapshot and taken is not None:
        snapshot_store.write(storage, taken)


def records(number, run):
    """The plan and the outcome of a successful evaluation by two workers."""
    checkpoint = Checkpoint(
        name=f"ckpt-{number}", digest=f"{number:064x}", step=number, format="tf_object", pin=f"pins/ckpt-{number}@0"
    )
    members = tuple(
        Member(rank, f"worker-{rank}", f"worker-{rank}.0123456789abcdef.{rank}", f"10.0.0.{rank}:21000")
        for rank in range(2)
    )
    accuracy = number / 30_000
    values = {
        name: Value(value=accuracy, hex=accuracy.hex(), lower=accuracy - 0.01, upper=accuracy + 0.01, goal="max")
        for name in ("a", "b", "c")
    }
    phases = dict.fromkeys(("detect", "agree", "join", "restore", "evaluate", "reduce", "save", "publish"), 0.1)
    result = Result(
        group=group_id(members),
        workers=2,
        examples={"test": 10_000},
        metrics={"test": values},
        phases=phases,
        variables=f"{number:064x}",
        task="t" * 64,
        profile={"tensorflow": "2.21.0", "isa": "AVX512F", "threads": "1"},
        saves=tuple(f"evaluations/ckpt-{number}@0/plan-{number}/worker-{rank}-of-2" for rank in range(2)),
        data={"test": EvalData("f" * 64, 157, "batches")},
    )
    at = "2026-01-01T00:00:00.000Z"
    yield Plan(
        plan=number,
        run=run,
        nonce=f"p{number:031x}",
        checkpoint=checkpoint,
        attempt=1,
        members=members,
        settles=(),
        task="t" * 64,
        proposer="worker-0",
        proposed_at=at,
        evaluated=number,
    )
    yield Outcome(
        plan=number,
        run=run,
        nonce=f"o{number:031x}",
        status="succeeded",
        closed_by="worker-0",
        completed_at=at,
        result=result,
    )
