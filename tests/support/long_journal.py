"""A journal of many evaluations as daemons leave it: segments, the newest plans as single files, and a snapshot."""

import hashlib

from records import make_plan

from sidecar.coordination import snapshot_store
from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.coordination.journal_state import EntryLog, JournalState
from sidecar.coordination.run import open_run
from sidecar.coordination.segments import KEPT_PLANS, SegmentWriter, marker, segment_path
from sidecar.coordination.snapshot import RECENT, take
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Checkpoint, EvalData, Member, Outcome, Result, Value, group_id

_BEHIND = 150  # the plans after the snapshot: a publisher writes one every 200 plans


def write_long_journal(storage, plans, *, metrics=10, segments=True, snapshot=True):
    """Write the state directory of a run; return the run's id and the number of segments.

    Files are whole, but not synced one by one: that would take minutes, and nobody reads them meanwhile.
    """
    run, history = open_run(storage, 0.0), JournalState(log=EntryLog(keep=RECENT))
    writer, made, single = SegmentWriter(run, 1), 0, []
    for number in range(1, plans + 1):
        plan, outcome = records(number, run, metrics)
        for record in (plan, outcome):
            history.apply(record)
        single.append((number, dumps(plan), dumps(outcome)))
        if number == plans - _BEHIND and snapshot:
            assert snapshot_store.write(storage, take(history, run)) is None
        while segments and single[0][0] + KEPT_PLANS <= number:
            _, *content = single.pop(0)
            whole = not writer.takes(*content)
            if not whole:
                writer.add(*content)
            if whole or writer.is_full:
                storage.replace(segment_path(writer.first), writer.content())
                writer, made = SegmentWriter(run, writer.last + 1), made + 1
            if whole:
                writer.add(*content)
    # what is in no segment yet are single files
    single = [records_of(number, run, metrics) for number in range(writer.first, plans - len(single) + 1)] + single
    for number, plan, outcome in single:
        storage.replace(plan_path(number), plan)
        storage.replace(outcome_path(number), outcome)
    if made:
        storage.replace(plan_path(1), marker(run))
    return run, made


def records_of(number, run, metrics):
    """The number of a plan, and the bytes of its records."""
    return number, *map(dumps, records(number, run, metrics))


def records(number, run, metrics=3):
    """The plan and the outcome of a successful evaluation by two workers."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    folder = f"ckpt-{number}@{digest[:12]}"
    checkpoint = Checkpoint(name=f"ckpt-{number}", digest=digest, step=number, format="tf_object", pin=f"pins/{folder}")
    members = tuple(
        Member(rank, f"worker-{rank}", f"worker-{rank}.0123456789abcdef.{rank}", f"10.0.0.{rank}:21000")
        for rank in range(2)
    )
    values = {}
    for place in range(metrics):
        accuracy = (number * (place + 7) % 104_729) / 104_729
        values[f"metric_{place}"] = Value(
            value=accuracy, hex=accuracy.hex(), lower=accuracy * 0.99, upper=accuracy * 1.01, goal="max"
        )
    phases = dict.fromkeys(("detect", "agree", "join", "restore", "evaluate", "reduce", "save", "publish"), 0.1)
    result = Result(
        group=group_id(members),
        workers=2,
        examples={"test": 10_000},
        metrics={"test": values},
        phases=phases,
        variables=digest,
        task="t" * 64,
        profile={"tensorflow": "2.21.0", "isa": "AVX512F", "threads": "1"},
        saves=tuple(f"evaluations/{folder}/plan-{number}/worker-{rank}-of-2" for rank in range(2)),
        data={"test": EvalData("f" * 64, 157, "batches")},
    )
    at = "2026-01-01T00:00:00.000Z"
    plan = make_plan(
        number,
        checkpoint,
        run=run,
        nonce=f"p{number:031x}",
        members=members,
        task="t" * 64,
        proposer="worker-0",
        proposed_at=at,
        evaluated=number,
    )
    outcome = Outcome(
        plan=number,
        run=run,
        nonce=f"o{number:031x}",
        status="succeeded",
        closed_by="worker-0",
        completed_at=at,
        result=result,
    )
    return plan, outcome
