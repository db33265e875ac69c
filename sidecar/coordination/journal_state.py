"""Fold the journal into one state, record by record: `plan 1, outcome 1, plan 2, …`. Pure; no I/O.

The policy, the gauges and `sidecar history` read the past from here, so that views of it cannot disagree. The state has
one part for each question: `checkpoint_verdicts` (which checkpoints are settled), `exclusions` (which nodes and workers
the next plan goes without), `newest_task` (the newest numbers) and `totals` (counts and best values).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from sidecar.coordination.checkpoint_verdicts import CheckpointVerdicts
from sidecar.coordination.comparability import SeenData, seen_data
from sidecar.coordination.exclusions import Exclusions
from sidecar.coordination.key_set import KeySet
from sidecar.coordination.newest_task import NewestTask
from sidecar.coordination.totals import Totals
from sidecar.errors import RecordError
from sidecar.protocol.record_limits import RESULT_VIEW, RecordLimits
from sidecar.protocol.records import Checkpoint, Key, Outcome, Plan, Result, Settlement
from sidecar.protocol.states import FailureKind, OutcomeStatus, Verdict

FOLDERS_KEPT: Final = 1000
"""The number of newest evaluations whose saves a restarted daemon still knows: more than any setting retains."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Hold a plan and its outcome."""

    LIMITS: ClassVar[RecordLimits] = RESULT_VIEW

    plan: Plan
    outcome: Outcome

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint that the plan evaluated."""
        assert self.plan.checkpoint is not None, "the journal closes only plans that have one"
        return self.plan.checkpoint

    @property
    def result(self) -> Result:
        """Return the result of a plan that succeeded."""
        assert self.outcome.result is not None, "the plan succeeded"
        return self.outcome.result


@dataclass(frozen=True, slots=True)
class Settled:
    """Hold the settlement of a checkpoint without an evaluation, and the plan that contains it."""

    plan: Plan
    settlement: Settlement


Entry = Closed | Settled


@dataclass(slots=True)
class EntryLog:
    """Hold the entries of a journal in its order: the newest `keep`, or all."""

    keep: int | None = None
    entries: list[Entry] = field(default_factory=list)  # at least the newest `keep` of all `count`
    count: int = 0
    _profiles: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, entries: Sequence[Entry]) -> None:
        """Append entries, and drop the oldest ones if there are too many."""
        self.entries += entries
        self.count += len(entries)
        if self.keep is not None and len(self.entries) > 2 * self.keep:
            del self.entries[: -self.keep]

    def closed(self, plan: Plan, outcome: Outcome) -> Closed:
        """Return the entry of a plan that ended. Equal numeric profiles are stored once for all entries."""
        if outcome.result is None:
            return Closed(plan, outcome)
        profile = self._profiles.setdefault(repr(outcome.result.profile), outcome.result.profile)
        return Closed(plan, replace(outcome, result=replace(outcome.result, profile=profile)))


@dataclass(slots=True, kw_only=True)
class JournalState:
    """Hold the state of a run that follows from its journal, up to plan `through`."""

    through: int = 0  # every plan to this number is known, and every outcome to this number unless `open` is that plan
    open: Plan | None = None
    backlog_cutoff_pending: bool = True  # with start=new: the next plan settles (more) checkpoints from before it
    nonces: tuple[str, str | None] | None = None  # of the newest plan and, once it is closed, of its outcome
    log: EntryLog = field(default_factory=EntryLog)
    totals: Totals = field(default_factory=Totals)
    newest: Closed | None = None  # the evaluation that succeeded last, whose numbers the gauges show
    newest_task: NewestTask = field(default_factory=NewestTask)
    verdicts: CheckpointVerdicts = field(default_factory=CheckpointVerdicts)
    exclusions: Exclusions = field(default_factory=Exclusions)
    eval_sets: dict[str, SeenData] = field(default_factory=dict)  # as evaluated last, under any task
    folders: list[str] = field(default_factory=list)  # folders of saves of the newest evaluations, the newest last
    last_planned_step: int | None = None  # the step of the last checkpoint that was planned for the first time
    ordinals: dict[Key, int] = field(default_factory=dict)  # numbers of checkpoints without a step, in order

    def __post_init__(self) -> None:
        if not self.verdicts.succeeded:  # nearly all that were evaluated ever are in both sets
            self.verdicts.succeeded = KeySet(beside=self.totals.checkpoints["evaluated"])

    @property
    def entries(self) -> list[Entry]:
        """Return the entries that are retained, in the order of the journal."""
        return self.log.entries

    def apply(self, record: Plan | Outcome) -> list[Entry]:
        """Apply the next record of the journal, and return the entries that it made."""
        made = self._open(record) if isinstance(record, Plan) else self._close(record)
        self.log.add(made)
        return made

    def _open(self, plan: Plan) -> list[Entry]:
        """Apply a plan, and return an entry for each of its settlements."""
        if plan.plan != self.through + 1 or self.open is not None:
            raise RecordError(f"plan {plan.plan} follows plan {self.through} out of order")
        self.through, self.nonces = plan.plan, (plan.nonce, None)
        if plan.void is not None:  # it says nothing about the checkpoints from before the start either
            self.totals.set_aside.add(plan.plan, plan.void)
            return []
        self.backlog_cutoff_pending = plan.line_open
        for settlement in plan.settles:
            self._settle(settlement)
        # Each entry has its own settlement. With thousands of settlements, no entry should hold all of them.
        bare = replace(plan, settles=(), checkpoint=self._numbered(plan))
        if plan.checkpoint is not None and plan.members is not None:
            self.open = bare
            self._retire_replaced(plan)
            self._note_planned(plan.checkpoint)
        return [Settled(bare, settlement) for settlement in plan.settles]

    def _numbered(self, plan: Plan) -> Checkpoint | None:
        """Number the checkpoints of a plan that have no step, and return the one that it evaluates, with its number.

        All nodes read the same journal, so they use the same numbers, also after a restart.
        """
        mentioned = [(settlement.key, settlement.step) for settlement in plan.settles]
        if plan.checkpoint is not None:
            mentioned.append((plan.checkpoint.key, plan.checkpoint.step))
        for key in [key for key, step in mentioned if step is None]:
            self.ordinals.setdefault(key, len(self.ordinals) + 1)
        if plan.checkpoint is None or plan.checkpoint.step is not None:
            return plan.checkpoint
        return replace(plan.checkpoint, step=self.ordinals[plan.checkpoint.key], step_source="order")

    def _retire_replaced(self, plan: Plan) -> None:
        """Retire the workers of the newest evaluation if a plan lists others, because each node then replaces them."""
        if self.newest is not None and self.newest.plan.members != plan.members:
            self.exclusions.retire(self.newest.plan)

    def _note_planned(self, checkpoint: Checkpoint) -> None:
        """Note the step of a checkpoint that is planned for the first time. A further attempt does not change it."""
        if checkpoint.step is not None and not self.verdicts.is_known(checkpoint.key):
            self.last_planned_step = checkpoint.step

    def _settle(self, settlement: Settlement) -> None:
        """Apply the settlement of a checkpoint, or its reopening."""
        self.totals.settled(settlement)
        if settlement.verdict != Verdict.REQUEUED:
            self.verdicts.settle(settlement)
            return
        if self.verdicts.requeue(settlement.key):
            self.totals.reopened(settlement.key)
        self.exclusions.unusable.clear()  # a person wants another attempt, in spite of the proofs against the task

    def _close(self, outcome: Outcome) -> list[Entry]:
        """Apply the outcome of the open plan, and return its entry."""
        plan = self.open
        if plan is None or plan.plan != outcome.plan or plan.checkpoint is None:
            raise RecordError(f"outcome {outcome.plan} closes no open plan")
        self.open, self.nonces = None, (plan.nonce, outcome.nonce)
        closed = self.log.closed(plan, outcome)
        if outcome.status == OutcomeStatus.SUCCEEDED:
            self._succeed(closed, plan.checkpoint)
        else:
            self._fail(closed, plan.checkpoint)
        return [closed]

    def _fail(self, closed: Closed, checkpoint: Checkpoint) -> None:
        """Apply a failed attempt at a checkpoint."""
        plan, outcome = closed.plan, closed.outcome
        if outcome.kind == FailureKind.VOID:
            self.totals.set_aside.add(plan.plan, outcome.message or "")
        self.totals.failed(outcome)
        self.verdicts.fail(checkpoint.key, plan.task, outcome)
        self.exclusions.retire(plan)
        self.exclusions.lose(plan, outcome)
        if outcome.lasting == "task" and self.newest_task.successes_of(plan.task) == 0:
            self.exclusions.find_unusable(plan, outcome)

    def _succeed(self, closed: Closed, checkpoint: Checkpoint) -> None:
        """Apply the result of a checkpoint."""
        plan, result = closed.plan, closed.outcome.result
        self.newest = closed
        self.totals.begin_anew(self.newest_task.outdated(plan.task, result))
        self.newest_task = self.newest_task.succeed(plan.task, checkpoint, result)
        self.verdicts.succeed(checkpoint.key)
        self.exclusions.succeed(plan)
        self.folders = [*self.folders, plan.folder][-FOLDERS_KEPT:]
        if result is None:
            self.totals.checkpoints["evaluated"].add(checkpoint.key)
            return
        self.totals.succeeded(plan, checkpoint, result)
        self.eval_sets |= seen_data(result)

    def is_left_out(self, place: str, incarnation: str) -> bool:
        """Return whether a place of a daemon is left out of the next plan, because it lost too many in a row."""
        return self.exclusions.is_left_out(place, incarnation, self.through)

    def changed(self, result: Result) -> tuple[str, ...]:
        """Return the eval sets of a new result whose data differ from their last evaluation."""
        return tuple(
            name
            for name, seen in seen_data(result).items()
            if name in self.eval_sets and not self.eval_sets[name].may_equal(seen)
        )
