"""Build views, nodes, checkpoints and journals with defaults for the policy."""

from dataclasses import fields

from heartbeats import make_heartbeat
from records import make_plan

from sidecar.coordination.journal_state import JournalState
from sidecar.policy.actions import Propose
from sidecar.policy.decide import decide
from sidecar.policy.rules import Rules
from sidecar.policy.view import CheckpointsView, NodesView, TimersView, View
from sidecar.protocol.heartbeat import Slot
from sidecar.protocol.records import Checkpoint, Member, Outcome, Result, Settlement

NOW = 1000.0

RULES = Rules()


def checkpoint(step, *, pinned=True):
    name = f"ckpt-{step}"
    return Checkpoint(
        name=name, digest=f"{step:064d}", step=step, format="tf_object", pin=f"pins/{name}" if pinned else None
    )


A, B, C = checkpoint(1), checkpoint(2), checkpoint(3)


def slot(standby=None, worker=None, group=None):
    return Slot(
        worker=worker,
        group=group,
        address=worker and f"{worker}:1",
        standby=standby,
        standby_address=standby and f"{standby}:1",
    )


def node(name, *slots, **changes):
    slots = slots or (slot(f"{name}.i.1"),)
    return make_heartbeat(node=name, slots=slots, **changes)


def members(*workers):
    return tuple(Member(rank, worker.split(".")[0], worker, f"{worker}:1") for rank, worker in enumerate(workers))


def plan(number, what=A, workers=("n1.i.1",), *, task="t", settles=(), line_open=False):
    listed = members(*workers) if what is not None else None
    return make_plan(number, what, nonce=f"p{number}", members=listed, settles=settles, task=task, line_open=line_open)


def outcome(number, kind=None, where="n1"):
    if kind is not None:
        return Outcome(
            plan=number,
            run="r",
            nonce=f"o{number}",
            status="failed",
            closed_by="n1",
            completed_at="now",
            kind=kind,
            node=where,
            message="because",
        )
    result = Result(
        group="g", workers=1, examples={}, metrics={}, phases={}, variables="v", task="t", profile={}, saves=()
    )
    return Outcome(
        plan=number, run="r", nonce=f"o{number}", status="succeeded", closed_by="n1", completed_at="now", result=result
    )


def failures(*kinds, what=A, task="t", nodes=("n1",)):
    """A history in which one checkpoint failed so often, each time with another worker."""
    history = JournalState()
    for number, kind in enumerate(kinds, 1):
        history.apply(plan(number, what, (f"n1.i.9{number}",), task=task))
        history.apply(outcome(number, kind, nodes[(number - 1) % len(nodes)]))
    return history


def fold(*records):
    history = JournalState()
    for record in records:
        history.apply(record)
    return history


def settled(what, verdict, task=None):
    return Settlement(name=what.name, digest=what.digest, step=what.step, verdict=verdict, reason="because", task=task)


def view(**changes):
    """A node that is alone, has looked, and found one checkpoint that nobody tried."""
    given = {
        "node": "n1",
        "incarnation": "i",
        "task": "t",
        "history": JournalState(),
        "ready": [node("n1")],
        "complete": [A],
        "may_propose": True,
        "caught_up": True,
    }
    given |= changes
    parts = {"nodes": NodesView, "checkpoints": CheckpointsView, "timers": TimersView}
    grouped = {part: {each.name for each in fields(kind)} & given.keys() for part, kind in parts.items()}
    made = {part: kind(**{name: given.pop(name) for name in grouped[part]}) for part, kind in parts.items()}
    return View(**given, **made)


def decided(rules=RULES, now=NOW, **changes):
    return decide(view(**changes), rules, now)


def listed(action):
    assert isinstance(action, Propose), action
    return [member.worker for member in action.members]
