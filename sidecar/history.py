"""The journal, folded: what is settled, what is open, how often each checkpoint was tried. Pure; no I/O.

Plans and outcomes are applied in journal order (`plan 1, outcome 1, plan 2, …`); everything that is shown or decided
about the past (policy, gauges, `sidecar history`) is read from here, so views of it cannot disagree.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from sidecar.errors import RecordError
from sidecar.records import KINDS, Blame, Checkpoint, EvalData, Outcome, Plan, Result, Settlement

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Closed:
    """A plan and how it ended."""

    plan: Plan
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Settled:
    """A checkpoint that an entry without an evaluation settled."""

    plan: Plan
    settlement: Settlement


Entry = Closed | Settled


Failures = dict[str | None, list[Outcome]]
"""Failed attempts at one checkpoint, by the digest of the task that tried it."""


def blamed(failures: Iterable[Outcome], blame: Blame) -> int:
    """How many failures are of that class; a kind that only a newer version knows is the machines' fault."""
    return sum(KINDS.get(outcome.kind or "", "group") == blame for outcome in failures)


@dataclass(slots=True)
class History:
    """Everything the journal says, up to `through`."""

    through: int = 0  # every plan to this number is known, and every outcome to this number unless `open` is that plan
    open: Plan | None = None
    entries: list[Entry] = field(default_factory=list)
    succeeded: dict[Key, Closed] = field(default_factory=dict)
    successes: Counter[str | None] = field(default_factory=Counter)  # since the task changed, by its digest
    latest: dict[str, tuple[Checkpoint, Result]] = field(default_factory=dict)  # by eval set that the newest task has
    settled: dict[Key, Settlement] = field(default_factory=dict)  # the last one
    failed_tasks: dict[Key, set[str | None]] = field(default_factory=dict)  # where it failed for good; None: all tasks
    failures: dict[Key, Failures] = field(default_factory=dict)  # of checkpoints that did not succeed since
    spent_workers: set[str] = field(default_factory=set)  # stood in a failed plan: never listed again
    eval_sets: dict[str, tuple[EvalData | None, int]] = field(default_factory=dict)  # data and examples, as seen last
    _profiles: dict[str, dict[str, str]] = field(default_factory=dict)

    def apply(self, record: Plan | Outcome) -> list[Entry]:
        """Add the next record of the journal; returns the entries that it made."""
        known = len(self.entries)
        if isinstance(record, Plan):
            self._open(record)
        else:
            self._close(record)
        return self.entries[known:]

    def _open(self, plan: Plan) -> None:
        if plan.plan != self.through + 1 or self.open is not None:
            raise RecordError(f"plan {plan.plan} follows plan {self.through} out of order")
        self.through = plan.plan
        for settlement in plan.settles:
            self.entries.append(Settled(plan, settlement))
            if settlement.verdict == "requeued":
                for known in (self.settled, self.failed_tasks, self.failures):
                    known.pop(settlement.key, None)
                continue
            self.settled[settlement.key] = settlement
            if settlement.verdict == "failed":
                self.failed_tasks.setdefault(settlement.key, set()).add(settlement.task)
        if plan.checkpoint is not None and plan.members is not None:
            self.open = plan

    def _close(self, outcome: Outcome) -> None:
        plan = self.open
        if plan is None or plan.plan != outcome.plan or plan.checkpoint is None:
            raise RecordError(f"outcome {outcome.plan} closes no open plan")
        self.open = None
        closed = Closed(plan, self._shared(outcome))
        self.entries.append(closed)
        key = plan.checkpoint.key
        if outcome.status == "succeeded":
            self._measured(closed)
            self.succeeded.pop(key, None)  # evaluated again: it is the newest now
            self.succeeded[key] = closed
            self.failures.pop(key, None)
            return
        self.failures.setdefault(key, {}).setdefault(plan.task, []).append(outcome)
        self.spent_workers.update(member.worker for member in plan.members or ())

    def _measured(self, closed: Closed) -> None:
        """Count the success, and note whose numbers are newer now: eval sets that it left out keep theirs."""
        plan, result = closed.plan, closed.outcome.result
        if plan.task not in self.successes:  # another task may have other eval sets, and begins with all of them
            self.successes, self.latest = Counter(), {}
        self.successes[plan.task] += 1
        if plan.checkpoint is not None and result is not None:
            self.latest |= dict.fromkeys(result.examples, (plan.checkpoint, result))
            self.eval_sets |= _eval_sets(result)

    def _shared(self, outcome: Outcome) -> Outcome:
        """The outcome with a profile that thousands of others have, too: kept once."""
        if outcome.result is None:
            return outcome
        profile = self._profiles.setdefault(repr(outcome.result.profile), outcome.result.profile)
        return replace(outcome, result=replace(outcome.result, profile=profile))

    def failed_under(self, key: Key, task: str | None) -> list[Outcome]:
        """Failed attempts at a checkpoint with that task."""
        return self.failures.get(key, {}).get(task, [])

    def changed(self, result: Result) -> tuple[str, ...]:
        """Eval sets of a new result that held other data when they were evaluated last."""
        return tuple(
            name
            for name, (data, examples) in _eval_sets(result).items()
            if name in self.eval_sets and not _same(self.eval_sets[name], (data, examples))
        )

    def is_settled(self, key: Key, task: str | None) -> bool:
        """Whether no further plan is needed; a failure counts only for the task digest that failed."""
        if key in self.succeeded:
            return True
        if key in self.settled and self.settled[key].verdict != "failed":
            return True
        failed = self.failed_tasks.get(key, set())
        return None in failed or task in failed

    @property
    def newest(self) -> Closed | None:
        """The evaluation whose numbers the gauges show: the one that succeeded last."""
        return next(reversed(self.succeeded.values()), None)

    def evaluated(self) -> Iterator[tuple[Checkpoint, Closed]]:
        """Successes in the order they were published."""
        for closed in self.succeeded.values():
            assert closed.plan.checkpoint is not None
            yield closed.plan.checkpoint, closed


def _eval_sets(result: Result) -> dict[str, tuple[EvalData | None, int]]:
    return {name: (result.data.get(name), examples) for name, examples in result.examples.items()}


def _same(before: tuple[EvalData | None, int], now: tuple[EvalData | None, int]) -> bool:
    """Whether numbers compare, as far as is known: older records and sets that divide themselves tell counts only."""
    prints = [data.fingerprint for data, _ in (before, now) if data is not None and data.fingerprint is not None]
    return before[1] == now[1] and len(set(prints)) <= 1
