"""Journals of plans and outcomes of every kind, drawn from a seed."""

import random
from dataclasses import replace

from records import make_plan

from sidecar.coordination.checkpoint_verdicts import BEFORE_START
from sidecar.coordination.journal_state import EntryLog, JournalState
from sidecar.coordination.snapshot import RECENT
from sidecar.protocol.records import (
    PHASES,
    Checkpoint,
    EvalData,
    Member,
    Nonfinite,
    Outcome,
    Result,
    Settlement,
    Value,
    group_id,
)
from sidecar.protocol.states import FAILURE_CLASSES


def random_journal(seed, length):
    """Records of a journal in which everything happens: names as users choose them, all kinds, requeues, two tasks."""
    choose, records = random.Random(seed), []
    keys = [(f"sub dir/ckpt-{number}\udc80", f"{number:064x}") for number in range(30)]
    for number in range(1, length + 1):
        settles = tuple(settlement(choose, keys) for _ in range(choose.choice([0, 0, 1, 2])))
        name, digest = choose.choice(keys)
        checkpoint = (
            Checkpoint(name=name, digest=digest, step=choose.choice([None, number]), format="tf")
            if choose.random() < 0.8
            else None
        )
        members = tuple(Member(rank, f"n{rank}", f"n{rank}.i.{number}", "h:1") for rank in range(2))
        task = "t1" if number < length / 2 else choose.choice(["t1", "t2", None])
        plan = make_plan(
            number,
            checkpoint,
            nonce=f"p{number}",
            attempt=1,
            members=checkpoint and members,
            settles=settles,
            task=task,
            proposer="n0",
        )
        records.append(plan)
        if checkpoint is not None:
            records.append(outcome(choose, number, group_id(members)))
    return records


def settlement(choose, keys):
    verdict = choose.choice(["skipped", "vanished", "corrupt", "failed", "requeued"])
    name, digest = choose.choice(keys)
    step = choose.randrange(100)
    reason = BEFORE_START if verdict == "skipped" and step % 2 else "why"
    return Settlement(
        name=name,
        digest=digest,
        step=step if step > 20 else None,
        verdict=verdict,
        reason=reason,
        task=choose.choice([None, "t1", "t2"]),
    )


def outcome(choose, number, group):
    ended = Outcome(
        plan=number, run="r", nonce=f"o{number}", status="failed", closed_by="n0", completed_at="2026-01-01T00:00:00Z"
    )
    if choose.random() < 0.4:
        return replace(
            ended,
            kind=choose.choice([*FAILURE_CLASSES, "of a newer version", None]),
            message="why",
            node="n1",
            rank=1,
            lasting=choose.choice([None, "checkpoint", "task"]),
        )
    return replace(ended, status="succeeded", result=result(choose, group))


def result(choose, group):
    sets = choose.choice([("test",), ("test", "rare")])
    number = choose.choice([choose.random(), float("inf"), float("nan")])
    finite = number if abs(number) < float("inf") else None
    metrics = {
        name: {"loss": Value(value=finite, hex=number.hex(), goal="min"), "rows": Value(value=1.0, hex="0x1p0")}
        for name in sets
    }
    return Result(
        group=group,
        workers=2,
        examples=dict.fromkeys(sets, 10),
        metrics=metrics,
        phases=dict.fromkeys(PHASES, choose.random()),
        variables="v",
        task="t",
        profile={"cpu": "x"},
        saves=(),
        data={name: EvalData(choose.choice(["f1", "f2", None]), 3, "batches") for name in sets},
        changed=choose.choice([(), ("test",)]),
        nonfinite=choose.choice([{}, {"test": {"label": Nonfinite(1, 0, 0)}}]),
    )


def fold(records, history=None):
    history = history or JournalState(log=EntryLog(keep=RECENT))
    for record in records:
        history.apply(record)
    return history


def closed_journal():
    """Return a journal without an open plan."""
    newest_last = random_journal(7, 150)
    while fold(newest_last).open is not None:
        newest_last.pop()
    return newest_last
