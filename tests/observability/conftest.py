"""A journal in miniature, shared by the tests of its views."""

import pytest
from statuses import make_status

from sidecar.coordination.journal_state import JournalState
from sidecar.observability.status import Newest, WorkerStatus
from sidecar.records import Checkpoint, Member, Outcome, Plan, Result, Settlement, Value

ACCURACY = Value(value=0.97, hex=(0.97).hex(), lower=0.95, upper=0.98, goal="max")
PHASES = {"detect": 0.01, "agree": 0.02, "restore": 0.1, "evaluate": 0.6, "reduce": 0.01, "save": 0.05}


class Journal:
    """Writes plans and outcomes into a `JournalState`, numbering them as the agreement does."""

    def __init__(self):
        self.history = JournalState()

    def plan(self, name="ckpt-5", *, step=500, attempt=1, settles=(), members=2, task="t1"):
        """Open a plan for a checkpoint, or, without a name, only settle."""
        number = self.history.through + 1
        checkpoint = name and Checkpoint(name=name, digest=f"digest-{name}", step=step, format="tf_object")
        listed = tuple(Member(rank, f"worker-{rank}", f"w{number}-{rank}", "h:1") for rank in range(members))
        plan = Plan(
            plan=number,
            run="mnist",
            nonce="n",
            checkpoint=checkpoint,
            attempt=attempt,
            members=listed if name else None,
            settles=tuple(settles),
            task=task,
            proposer="worker-0",
            proposed_at="2026-01-31T12:00:00.000Z",
        )
        self.history.apply(plan)
        return plan

    def succeed(
        self, metrics=None, examples=1003, phases=None, classes=None, changed=(), eval_sets=("test",), nonfinite=None
    ):
        """Close the open plan with the same numbers for each eval set; with classes of the set `test`."""
        result = Result(
            group="g1",
            workers=2,
            examples=dict.fromkeys(eval_sets, examples),
            metrics=dict.fromkeys(eval_sets, metrics or {"accuracy": ACCURACY}),
            phases=PHASES if phases is None else phases,
            variables="v",
            task="t1",
            profile={},
            saves=(),
            classes={"test": classes} if classes else {},
            changed=changed,
            nonfinite={"test": nonfinite} if nonfinite else {},
        )
        return self.close(status="succeeded", result=result)

    def fail(self, kind="stalled", message="no batch for 60 s"):
        """Close the open plan as failed on worker-1."""
        return self.close(status="failed", kind=kind, node="worker-1", rank=1, message=message)

    def close(self, **how):
        """Close the open plan."""
        (closed,) = self.history.apply(
            Outcome(
                plan=self.history.through,
                run="mnist",
                nonce="n",
                closed_by="worker-0",
                completed_at="2026-01-31T12:00:01.500Z",
                **how,
            )
        )
        return closed

    def evaluate(self, name, step, metrics=None, eval_sets=("test",), task="t1"):
        """One whole successful evaluation."""
        self.plan(name, step=step, task=task)
        return self.succeed(metrics, eval_sets=eval_sets)


def settlement(name="ckpt-5", verdict="failed", *, step=500, reason="gave up after 3 attempts", task="t1"):
    """The end of a checkpoint of `Journal`."""
    return Settlement(name=name, digest=f"digest-{name}", step=step, verdict=verdict, reason=reason, task=task)


@pytest.fixture
def journal():
    """An empty journal."""
    return Journal()


@pytest.fixture
def settle():
    """Make settlements."""
    return settlement


@pytest.fixture
def status():
    """Make the status of a ready publisher, with changes."""
    ready = {
        "run": "mnist",
        "node": "worker-0",
        "incarnation": "i",
        "version": "0.1.0",
        "role": "worker",
        "role_source": "TF_CONFIG",
        "state": "ready",
        "publisher": True,
        "unready": None,
        "journal_read": True,
        "pending": 3,
        "oldest_pending": 1769860700.5,
        "newest": Newest(700, 1769860800.25, "ckpt-7", "digest", "name"),
        "group_size": 2,
        "groups_formed": 4,
        "members": {"ready": 2},
        "workers": (WorkerStatus("w1-0", 4242, "evaluate", 3, 8), WorkerStatus("w1-9", 4243, "standby")),
        "pins_bytes": 1024,
        "saves_bytes": 2048,
        "left_out": {"worker-7": "it runs version 2, most nodes 1"},
        "left_out_reasons": {"version": 1},
        "sentences": ("ckpt-9@d: Input/output error",),
        "count": 1,
    }
    return lambda **changes: make_status(**{**ready, **changes})
