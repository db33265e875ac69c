"""Fold the journal: which checkpoints are settled, which plan is open, how often each was tried. Pure; no I/O.

Plans and outcomes are applied in journal order (`plan 1, outcome 1, plan 2, …`); everything that is shown or decided
about the past (policy, gauges, `sidecar history`) is read from here, so views of it cannot disagree.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from typing import Final

from sidecar.coordination.totals import Totals
from sidecar.errors import RecordError
from sidecar.records import Checkpoint, EvalData, Key, Outcome, Plan, Result, Settlement
from sidecar.states import FAILURE_CLASSES, FailureClass, OutcomeStatus, Verdict

BEFORE_START: Final = "it was there before the start (start=new)"
"""The reason why a checkpoint is skipped that was there before the run."""

FOLDERS_KEPT: Final = 1000
"""Evaluations, the newest, whose saves a restarted daemon still knows: more than anybody retains."""

LOSERS_KEPT: Final = 256
"""Daemons that lost plans, the newest: more than run at the same time."""

_MOST_PLANS_WITHOUT: Final = 16
"""A node that lost plans in a row is left out of at most that many plans before it is tried again."""

RETIRED_WORKERS_KEPT: Final = 10_000
"""Retired workers that are remembered: more than old heartbeats in storage could still name."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A plan and how it ended."""

    plan: Plan
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Settled:
    """A checkpoint that was settled without an evaluation."""

    plan: Plan
    settlement: Settlement


Entry = Closed | Settled


Failures = dict[str | None, list[Outcome]]
"""Failed attempts at one checkpoint, by the digest of the task that tried it."""

Witness = tuple[str | None, str, str]
"""The digest of a task; node and incarnation of a daemon that tried it."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Plans that one daemon lost in a row while others took part. It is left out of the plans up to `until`."""

    count: int
    until: int = 0


def blame(outcome: Outcome) -> FailureClass:
    """Return the class of a failure: GROUP if it is one node's alone, or of a kind that this release does not know."""
    return FailureClass.GROUP if outcome.odd else FAILURE_CLASSES.get(outcome.kind or "", FailureClass.GROUP)


def blamed(failures: Iterable[Outcome], what: FailureClass) -> int:
    """Return how many failures are of a class."""
    return sum(blame(outcome) == what for outcome in failures)


def losers(outcome: Outcome) -> tuple[str, ...]:
    """Return the nodes without which the next attempt may do better."""
    return outcome.odd or (() if outcome.node is None else (outcome.node,))


@dataclass(slots=True)
class JournalState:
    """Everything that the journal says, up to `through`; of its entries the newest `keep`, or all."""

    keep: int | None = None
    through: int = 0  # every plan to this number is known, and every outcome to this number unless `open` is that plan
    open: Plan | None = None
    backlog_cutoff_pending: bool = True  # with start=new: the next plan settles (more of) what was there before
    entries: list[Entry] = field(default_factory=list)  # at least the newest `keep` of all `count`
    count: int = 0
    totals: Totals = field(default_factory=Totals)
    newest: Closed | None = None  # the evaluation whose numbers the gauges show: the one that succeeded last
    task: str | None = None  # the code that made it
    successes: int = 0  # since the task changed
    goals: dict[str, str] = field(default_factory=dict)  # EVAL_SET/METRIC of that task, in its order: max, min or none
    latest: dict[str, tuple[Checkpoint, Result]] = field(default_factory=dict)  # by eval set that the newest task has
    succeeded: set[Key] = field(default_factory=set)  # evaluated, and not requeued since; `totals` has all
    settled: dict[Key, Verdict] = field(default_factory=dict)  # the last one
    before_start: set[Key] = field(default_factory=set)  # of those skipped: there before the start, with start=new
    failed_tasks: dict[Key, set[str | None]] = field(default_factory=dict)  # where it failed for good; None: all tasks
    failures: dict[Key, Failures] = field(default_factory=dict)  # of checkpoints that may be tried again
    retired_workers: dict[str, None] = field(default_factory=dict)  # of a failed plan, or replaced: never listed again
    eval_sets: dict[str, tuple[EvalData | None, int]] = field(default_factory=dict)  # data and examples, as seen last
    folders: list[str] = field(default_factory=list)  # where the newest evaluations saved, the newest last
    nonces: tuple[str, str | None] | None = None  # of the newest plan and, once it is closed, of its outcome
    last_planned_step: int | None = None  # the step of the checkpoint that was planned for the first time last
    requeued: set[Key] = field(default_factory=set)  # asked for again by a person, and not settled since
    losses: dict[tuple[str, str], Losses] = field(default_factory=dict)  # by node and incarnation
    ordinals: dict[Key, int] = field(default_factory=dict)  # of checkpoints without a step, in order of the journal
    unusable: dict[Witness, Outcome] = field(default_factory=dict)  # why a task cannot work, as a daemon found
    _profiles: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def without_result(self) -> set[Key]:
        """Return the checkpoints that were settled and have not succeeded since, say under a corrected task."""
        return self.settled.keys() - self.succeeded

    def apply(self, record: Plan | Outcome) -> list[Entry]:
        """Add the next record of the journal; return the entries that it made."""
        made = self._open(record) if isinstance(record, Plan) else self._close(record)
        self.entries += made
        self.count += len(made)
        if self.keep is not None and len(self.entries) > 2 * self.keep:
            del self.entries[: -self.keep]
        return made

    def _open(self, plan: Plan) -> list[Entry]:
        if plan.plan != self.through + 1 or self.open is not None:
            raise RecordError(f"plan {plan.plan} follows plan {self.through} out of order")
        self.through, self.nonces, self.backlog_cutoff_pending = plan.plan, (plan.nonce, None), plan.line_open
        for settlement in plan.settles:
            self._settle(settlement)
        # Each entry has its own settlement: of thousands none should hold all.
        bare = replace(plan, settles=(), checkpoint=self._numbered(plan))
        if plan.checkpoint is not None and plan.members is not None:
            self.open = bare
            if self.newest is not None and self.newest.plan.members != plan.members:
                self._retire_workers(self.newest.plan)  # whoever sees this plan replaces them
            self._note_planned(plan.checkpoint)
        return [Settled(bare, settlement) for settlement in plan.settles]

    def _numbered(self, plan: Plan) -> Checkpoint | None:
        """Number the checkpoints of a plan that have no step; return the one that it evaluates, with its number.

        All nodes read the same journal, so they say the same number, and a restart changes none.
        """
        about = [(each.key, each.step) for each in plan.settles]
        if plan.checkpoint is not None:
            about.append((plan.checkpoint.key, plan.checkpoint.step))
        for key in [key for key, step in about if step is None]:
            self.ordinals.setdefault(key, len(self.ordinals) + 1)
        if plan.checkpoint is None or plan.checkpoint.step is not None:
            return plan.checkpoint
        return replace(plan.checkpoint, step=self.ordinals[plan.checkpoint.key], step_source="order")

    def _retire_workers(self, plan: Plan) -> None:
        self.retired_workers |= dict.fromkeys(member.worker for member in plan.members or ())
        for worker in list(self.retired_workers)[:-RETIRED_WORKERS_KEPT]:
            del self.retired_workers[worker]

    def _note_planned(self, checkpoint: Checkpoint) -> None:
        """Note where evaluation stands; a further attempt at an older checkpoint does not set it back."""
        key = checkpoint.key
        known = any(key in past for past in (self.failures, self.settled, self.requeued, self.succeeded))
        if checkpoint.step is not None and not known:
            self.last_planned_step = checkpoint.step

    def _settle(self, settlement: Settlement) -> None:
        key, verdict = settlement.key, settlement.verdict
        self.totals.settled(settlement)
        if verdict == Verdict.REQUEUED:
            for known in (self.settled, self.failed_tasks, self.failures):
                known.pop(key, None)
            if key in self.succeeded:
                self.succeeded.remove(key)
                self.totals.reopened(key)
            self.requeued.add(key)
            self.unusable.clear()  # it is to be tried again, whatever others came to
            return
        self.requeued.discard(key)
        self.settled[key] = verdict
        if settlement.reason == BEFORE_START:
            self.before_start.add(key)
        if verdict == Verdict.FAILED:
            self.failed_tasks.setdefault(key, set()).add(settlement.task)
            self.failures.get(key, {}).pop(settlement.task, None)
        if verdict != Verdict.FAILED or not self.failures.get(key):
            self.failures.pop(key, None)

    def _close(self, outcome: Outcome) -> list[Entry]:
        plan = self.open
        if plan is None or plan.plan != outcome.plan or plan.checkpoint is None:
            raise RecordError(f"outcome {outcome.plan} closes no open plan")
        self.open, self.nonces = None, (plan.nonce, outcome.nonce)
        closed = Closed(plan, self._shared(outcome))
        if outcome.status == OutcomeStatus.SUCCEEDED:
            self._succeeded(closed, plan.checkpoint)
        else:
            self.totals.failed(outcome)
            self.failures.setdefault(plan.checkpoint.key, {}).setdefault(plan.task, []).append(outcome)
            self._retire_workers(plan)
            self._lose(plan, outcome)
            self._note_lasting(plan, outcome)
        return [closed]

    def _note_lasting(self, plan: Plan, outcome: Outcome) -> None:
        """Remember the daemons that found that a task fails on every checkpoint, unless the task has just succeeded."""
        if outcome.lasting == "task" and self.successes_of(plan.task) == 0:
            for node, incarnation in [each for each in _daemons(plan) if each[0] == outcome.node]:
                self.unusable[plan.task, node, incarnation] = outcome
            for witness in list(self.unusable)[:-LOSERS_KEPT]:
                del self.unusable[witness]

    def _lose(self, plan: Plan, outcome: Outcome) -> None:
        """Count a loss against the nodes to blame, if others were in the plan that may do better without them.

        Such a node is left out of the next plan. From the second loss in a row it is left out of one more plan, then of
        twice as many each time. A daemon that is restarted has another incarnation, and no losses.
        """
        daemons = _daemons(plan)
        if len(daemons) < 2:  # noqa: PLR2004 - without others nobody does better
            return
        for daemon in [each for each in daemons if each[0] in losers(outcome)]:
            known = self.losses.pop(daemon, None)
            count = 1 if known is None else known.count + 1
            more = 0 if count == 1 else min(_MOST_PLANS_WITHOUT, 2 ** min(count - 2, _MOST_PLANS_WITHOUT))
            self.losses[daemon] = Losses(count, plan.plan + 1 + more)
        for daemon in list(self.losses)[:-LOSERS_KEPT]:
            del self.losses[daemon]

    def is_left_out(self, node: str, incarnation: str) -> bool:
        """Return whether a daemon is left out of the next plan, since it lost too many in a row."""
        losses = self.losses.get((node, incarnation))
        return losses is not None and losses.until > self.through

    def _succeeded(self, closed: Closed, checkpoint: Checkpoint) -> None:
        """Note an evaluation. Eval sets that took no part keep their newest numbers."""
        plan, result = closed.plan, closed.outcome.result
        if plan.task != self.task or self.newest is None:
            # Another task may have other eval sets, and begins with all of them.
            self.task, self.successes, self.latest, self.goals = plan.task, 0, {}, {}
        self.newest = closed
        self.successes += 1
        if len(daemons := _daemons(plan)) > 1:  # alone, a node proves nothing about its links to others
            for daemon in daemons:
                self.losses.pop(daemon, None)
        self.folders = [*self.folders, plan.folder][-FOLDERS_KEPT:]
        self.failures.pop(checkpoint.key, None)
        for witness in [each for each in self.unusable if each[0] == plan.task]:
            del self.unusable[witness]
        self.requeued.discard(checkpoint.key)
        self.succeeded.add(checkpoint.key)
        if result is None:
            self.totals.checkpoints["evaluated"].add(checkpoint.key)
            return
        self.totals.succeeded(plan, checkpoint, result)
        self.latest |= dict.fromkeys(result.examples, (checkpoint, result))
        self.eval_sets |= _eval_sets(result)
        for eval_set, values in result.metrics.items():
            self.goals |= {f"{eval_set}/{name}": value.goal for name, value in values.items()}

    def successes_of(self, task: str | None) -> int:
        """Return how many evaluations succeeded with a task, if it is the newest."""
        return self.successes if task == self.task else 0

    def _shared(self, outcome: Outcome) -> Outcome:
        """Return the outcome with a profile that is stored once for all outcomes that have the same."""
        if outcome.result is None:
            return outcome
        profile = self._profiles.setdefault(repr(outcome.result.profile), outcome.result.profile)
        return replace(outcome, result=replace(outcome.result, profile=profile))

    def failed_under(self, key: Key, task: str | None) -> list[Outcome]:
        """Return the failed attempts at a checkpoint with a task."""
        return self.failures.get(key, {}).get(task, [])

    def changed(self, result: Result) -> tuple[str, ...]:
        """Return the eval sets of a new result that held other data when they were evaluated last."""
        return tuple(
            name
            for name, (data, examples) in _eval_sets(result).items()
            if name in self.eval_sets and not _same(self.eval_sets[name], (data, examples))
        )

    def is_settled(self, key: Key, task: str | None) -> bool:
        """Return whether a checkpoint needs no further plan; a failure counts only for the task that failed."""
        if key in self.succeeded:
            return True
        if key in self.settled and self.settled[key] != Verdict.FAILED:
            return True
        failed = self.failed_tasks.get(key, set())
        return None in failed or task in failed

    def unsettled(self, keys: Iterable[Key], task: str | None) -> list[Key]:
        """Return the keys that need a further plan, in their order; tens of thousands take some milliseconds."""
        left = filterfalse(self.succeeded.__contains__, keys) if self.succeeded else keys
        if self.failed_tasks:
            return [key for key in left if not self.is_settled(key, task)]
        return list(filterfalse(self.settled.__contains__, left))


def incarnation_of(worker: str, node: str) -> str:
    """Return the incarnation of the daemon that a worker belongs to: ids are `NODE.INCARNATION.NUMBER`."""
    return worker.removeprefix(f"{node}.").split(".")[0]


def _daemons(plan: Plan) -> list[tuple[str, str]]:
    """Return node and incarnation of each daemon in a plan."""
    return list(dict.fromkeys((each.node, incarnation_of(each.worker, each.node)) for each in plan.members or ()))


def _eval_sets(result: Result) -> dict[str, tuple[EvalData | None, int]]:
    return {name: (result.data.get(name), examples) for name, examples in result.examples.items()}


def _same(before: tuple[EvalData | None, int], now: tuple[EvalData | None, int]) -> bool:
    """Return whether numbers compare, as far as is known: some records have only counts."""
    prints = [data.fingerprint for data, _ in (before, now) if data is not None and data.fingerprint is not None]
    return before[1] == now[1] and len(set(prints)) <= 1
