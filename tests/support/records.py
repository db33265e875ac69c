"""Records of a journal as tests need them: every field that a test does not name has a usual value."""

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.records import Checkpoint, Member, Outcome, Plan, Result, Settlement

A = Checkpoint(name="ckpt-a", digest="a" * 64, step=1, format="tf")
B = Checkpoint(name="ckpt-b", digest="b" * 64, step=2, format="tf")


def make_members(*workers):
    """Return members of a group. `workers`: `node.incarnation.number` each, in order of their ranks."""
    return tuple(Member(rank, worker.rsplit(".", 2)[0], worker, f"h:{rank}") for rank, worker in enumerate(workers))


def make_plan(number=1, checkpoint=A, *, workers=("n1.i.1",), **changes):
    """Return a plan to evaluate a checkpoint; with `None` one that only settles."""
    given = {
        "plan": number,
        "run": "r",
        "nonce": f"p{number}",
        "checkpoint": checkpoint,
        "attempt": 0 if checkpoint is None else 1,
        "members": None if checkpoint is None else make_members(*workers),
        "settles": (),
        "task": "t1",
        "proposer": "n1",
        "proposed_at": "now",
    }
    return Plan(**(given | changes))


def make_result(**changes):
    """Return a result of one worker that measured nothing."""
    given = {"group": "g", "workers": 1, "variables": "v", "task": "t1", "saves": ()}
    empty = {name: {} for name in ("examples", "metrics", "phases", "profile")}
    return Result(**(given | empty | changes))


def success(number=1, result=None, **changes):
    """Return the outcome of a plan that succeeded."""
    given = {"plan": number, "run": "r", "nonce": f"o{number}", "closed_by": "n1", "completed_at": "now"}
    return Outcome(**(given | {"status": "succeeded", "result": result or make_result()} | changes))


def failure(number=1, kind="stalled", **changes):
    """Return the outcome of a plan that failed."""
    given = {"plan": number, "run": "r", "nonce": f"o{number}", "closed_by": "n1", "completed_at": "now"}
    return Outcome(**(given | {"status": "failed", "kind": kind} | changes))


def settlement_of(checkpoint, verdict, task=None, **changes):
    """Return the end of a checkpoint."""
    given = {"name": checkpoint.name, "digest": checkpoint.digest, "step": checkpoint.step, "verdict": verdict}
    return Settlement(**(given | {"reason": "because", "task": task} | changes))


def fold(*entries):
    """Return the state of a journal that holds these plans and outcomes."""
    history = JournalState()
    for entry in entries:
        history.apply(entry)
    return history
