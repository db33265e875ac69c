"""A journal in miniature, shared by the tests of its views."""

from dataclasses import replace

from records import make_plan

from sidecar.coordination.journal import Journal as StoredJournal
from sidecar.coordination.journal_state import Closed, EntryLog, JournalState
from sidecar.protocol.records import Checkpoint, EvalData, Member, Outcome, Result, Settlement, Value, group_id

ACCURACY = Value(value=0.97, hex=(0.97).hex(), lower=0.95, upper=0.98, goal="max")
PHASES = {"detect": 0.01, "agree": 0.02, "restore": 0.1, "evaluate": 0.6, "reduce": 0.01, "save": 0.05}


def breaks(shown):
    """Places among rows of the history from which on numbers cannot be compared, by plan."""
    return {row["plan"]: row["data_changed"] for row in shown if row["data_changed"]}


def closed_by_workers(number, workers, examples, metrics, data, *, task="t"):
    """One evaluation of the set `test` in plan `number`, each of whose workers saved to its own folder."""
    plan = make_plan(
        number,
        Checkpoint(name=f"ckpt-{number}", digest=f"{number:064x}", step=number, format="tf_object"),
        nonce="n",
        members=tuple(Member(rank, "n", f"w{rank}", "h:1") for rank in range(workers)),
        task=task,
        proposer="n",
    )
    result = Result(
        group="g",
        workers=workers,
        examples={"test": examples},
        metrics={"test": metrics},
        phases={},
        variables="v",
        task=task,
        profile={},
        saves=tuple(f"{plan.folder}/worker-{rank}-of-{workers}" for rank in range(workers)),
        data={"test": data},
    )
    outcome = Outcome(
        plan=number, run="r", nonce="o", status="succeeded", closed_by="n", completed_at="now", result=result
    )
    return Closed(plan, outcome)


class Journal:
    """Writes plans and outcomes into a `JournalState`, numbering them as the agreement does."""

    def __init__(self, run="mnist"):
        self.run, self.history = run, JournalState()

    def plan(self, name="ckpt-5", *, step=500, attempt=1, settles=(), members=2, task="t1"):
        """Open a plan for a checkpoint, or, without a name, only settle."""
        number = self.history.through + 1
        checkpoint = name and Checkpoint(name=name, digest=f"digest-{name}", step=step, format="tf_object")
        listed = tuple(Member(rank, f"worker-{rank}", f"w{number}-{rank}", "h:1") for rank in range(members))
        plan = make_plan(
            number,
            checkpoint,
            run=self.run,
            nonce="n",
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
        self,
        metrics=None,
        examples=1003,
        phases=None,
        classes=None,
        changed=(),
        eval_sets=("test",),
        nonfinite=None,
        data=None,
        lag=None,
        slices=None,
    ):
        """Close the open plan with the same numbers for each eval set; with classes and slices of the set `test`.

        `data`: the fingerprint of all sets. Without one, what changed is as it is given.
        """
        prints = {} if data is None else {name: EvalData(data, 10, "batches") for name in eval_sets}
        result = Result(
            group=group_id(self.history.open.members or ()),
            workers=len(self.history.open.members or ()),
            examples=dict.fromkeys(eval_sets, examples),
            metrics=dict.fromkeys(eval_sets, metrics or {"accuracy": ACCURACY}),
            phases=PHASES if phases is None else phases,
            variables="v",
            task=self.history.open.task,
            profile={},
            saves=(),
            data=prints,
            classes={"test": classes} if classes else {},
            slices={"test": slices} if slices else {},
            changed=changed,
            nonfinite={"test": nonfinite} if nonfinite else {},
            lag_seconds=lag,
        )
        if data is not None:
            result = replace(result, changed=self.history.changed(result))
        return self.close(status="succeeded", result=result)

    def fail(self, kind="stalled", message="no batch for 60 s"):
        """Close the open plan as failed on worker-1."""
        return self.close(status="failed", kind=kind, node="worker-1", rank=1, message=message)

    def close(self, **how):
        """Close the open plan."""
        (closed,) = self.history.apply(
            Outcome(
                plan=self.history.through,
                run=self.run,
                nonce="n",
                closed_by="worker-0",
                completed_at="2026-01-31T12:00:01.500Z",
                **how,
            )
        )
        return closed

    def evaluate(self, name, step, metrics=None, eval_sets=("test",), task="t1", data=None):
        """One whole successful evaluation."""
        self.plan(name, step=step, task=task)
        return self.succeed(metrics, eval_sets=eval_sets, data=data)


def short_memories(storage, run, count):
    """Write so many evaluations into storage; after each, yield the state of a daemon that remembers two entries."""
    stored, short, journal = StoredJournal(storage, run), JournalState(log=EntryLog(keep=2)), Journal(run)
    for step in range(1, count + 1):
        journal.evaluate(f"ckpt-{step}", step)
        plan, outcome = journal.history.entries[-1].plan, journal.history.entries[-1].outcome
        outcome = replace(outcome, result=replace(outcome.result, group=group_id(plan.members)))
        assert stored.propose(plan)
        stored.read_new()
        assert stored.close(outcome)
        stored.read_new()
        short.apply(plan)
        short.apply(outcome)
        yield short


def settlement(name="ckpt-5", verdict="failed", *, step=500, reason="gave up after 3 attempts", task="t1"):
    """The end of a checkpoint of `Journal`."""
    return Settlement(name=name, digest=f"digest-{name}", step=step, verdict=verdict, reason=reason, task=task)
