"""The folded journal as one record: a daemon that starts reads it, and of the journal only what came after it.

The publisher writes it now and then. It is a view: a daemon believes it only if it was folded in the same way and ends
with a plan and an outcome that are in the journal. Otherwise the daemon reads the journal from its beginning. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sidecar.coordination.journal_state import Closed, Entry, JournalState, Losses, Settled
from sidecar.coordination.totals import BUCKETS, Best, Duration, Totals
from sidecar.errors import RecordError
from sidecar.records import SCHEMA, Checkpoint, EvalData, Key, Outcome, Plan, Result, Settlement
from sidecar.states import Verdict

FOLD: Final = 7
"""Version of what `JournalState` makes of the journal: raised with every change, so that no old view is believed."""

RECENT: Final = 64
"""Entries that a daemon keeps: enough for what the status page shows."""


@dataclass(frozen=True, slots=True)
class Recent:
    """An entry: a plan with its outcome, or with what it settled."""

    plan: Plan
    outcome: Outcome | None = None
    settlement: Settlement | None = None


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest numbers of an eval set."""

    checkpoint: Checkpoint
    result: Result


@dataclass(frozen=True, slots=True)
class Attempts:
    """Failed attempts at a checkpoint under one task."""

    key: str
    task: str | None
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class FailedFor:
    """Tasks under which a checkpoint failed for good."""

    key: str
    tasks: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Loser:
    """A daemon that lost plans, as `history.Losses`."""

    node: str
    incarnation: str
    count: int
    until: int


@dataclass(frozen=True, slots=True)
class Unusable:
    """As an item of `JournalState.unusable`."""

    task: str | None
    node: str
    incarnation: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class SeenData:
    """The data of an eval set when it was evaluated last."""

    data: EvalData | None
    examples: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """As `totals.Duration`."""

    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """As `totals.Best`; `hex` may be inf, which is no JSON number."""

    goal: str
    hex: str
    step: int | None
    folder: str
    checkpoint: str
    step_source: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`JournalState` as it was when plan `through` was closed. Keys are `DIGEST/NAME`."""

    run: str
    fold: int
    through: int
    plan_nonce: str
    outcome_nonce: str | None  # null for a plan that only settled
    count: int
    recent: tuple[Recent, ...]
    newest: Closed | None
    task: str | None
    successes: int
    goals: dict[str, str]
    latest: dict[str, Latest]
    settled: dict[str, tuple[str, ...]]  # by verdict
    failed_tasks: tuple[FailedFor, ...]
    failures: tuple[Attempts, ...]
    spent_workers: tuple[str, ...]
    eval_sets: dict[str, SeenData]
    folders: tuple[str, ...]
    reached: int | None
    requeued: tuple[str, ...]
    # Totals
    checkpoints: dict[str, tuple[str, ...]]
    failed: dict[str, int]
    durations: dict[str, Histogram]
    best: dict[str, dict[str, Record]]  # by eval set and metric
    changes: dict[str, int]
    nonfinite: dict[str, tuple[str, ...]]
    losses: tuple[Loser, ...] = ()  # older releases write none, and read past them
    ordinals: tuple[str, ...] = ()  # keys of checkpoints without a step, in order
    unusable: tuple[Unusable, ...] = ()
    before_start: tuple[str, ...] = ()  # of those skipped
    reopened: tuple[str, ...] = ()  # of `checkpoints["evaluated"]` those that do not count as succeeded any more
    schema: int = SCHEMA


def take(history: JournalState, run: str) -> Snapshot:
    """Return the snapshot of a state that has a past, no open plan, and no backlog cut-off that is being written."""
    assert history.nonces is not None
    assert history.open is None
    assert not history.backlog_cutoff_pending
    totals = history.totals
    settled: dict[str, list[str]] = {}
    for key, verdict in history.settled.items():
        settled.setdefault(verdict, []).append(_join(key))
    best: dict[str, dict[str, Record]] = {}
    for (eval_set, name), each in totals.best.items():
        best.setdefault(eval_set, {})[name] = Record(
            goal=each.goal,
            hex=each.number.hex(),
            step=each.step,
            folder=each.folder,
            checkpoint=each.checkpoint,
            step_source=each.step_source,
        )
    nonfinite: dict[str, tuple[str, ...]] = {}
    for eval_set, place in sorted(totals.nonfinite):
        nonfinite[eval_set] = (*nonfinite.get(eval_set, ()), place)
    return Snapshot(
        run=run,
        fold=FOLD,
        through=history.through,
        plan_nonce=history.nonces[0],
        outcome_nonce=history.nonces[1],
        count=history.count,
        recent=tuple(_recent(entry) for entry in history.entries[-RECENT:]),
        newest=history.newest,
        task=history.task,
        successes=history.successes,
        goals=history.goals,
        latest={name: Latest(*each) for name, each in history.latest.items()},
        settled={verdict: tuple(keys) for verdict, keys in settled.items()},
        failed_tasks=tuple(
            FailedFor(_join(key), tuple(sorted(tasks, key=str))) for key, tasks in history.failed_tasks.items()
        ),
        failures=tuple(
            Attempts(_join(key), task, tuple(outcomes))
            for key, by_task in history.failures.items()
            for task, outcomes in by_task.items()
        ),
        spent_workers=tuple(history.retired_workers),
        eval_sets={name: SeenData(*each) for name, each in history.eval_sets.items()},
        folders=tuple(history.folders),
        reached=history.last_planned_step,
        requeued=tuple(sorted(map(_join, history.requeued))),
        checkpoints={status: tuple(sorted(map(_join, keys))) for status, keys in totals.checkpoints.items()},
        failed=totals.failures,
        durations={phase: Histogram(tuple(each.counts), each.total) for phase, each in totals.durations.items()},
        best=best,
        changes=totals.changes,
        nonfinite=nonfinite,
        losses=tuple(Loser(*daemon, each.count, each.until) for daemon, each in history.losses.items()),
        ordinals=tuple(map(_join, history.ordinals)),
        unusable=tuple(Unusable(*witness, outcome) for witness, outcome in history.unusable.items()),
        before_start=tuple(sorted(map(_join, history.before_start))),
        reopened=tuple(sorted(map(_join, totals.checkpoints["evaluated"] - history.succeeded))),
    )


def restore(snapshot: Snapshot) -> JournalState:
    """Return the state of which a snapshot was taken; raise `RecordError` if this version takes no such snapshot."""
    if snapshot.fold != FOLD:
        raise RecordError(f"the snapshot was folded in another way ({snapshot.fold}, not {FOLD})")
    try:
        return _restore(snapshot)
    except (ValueError, KeyError, OverflowError) as error:
        raise RecordError(f"the snapshot makes no sense: {type(error).__name__}: {error}") from error


def _restore(snapshot: Snapshot) -> JournalState:
    history = JournalState(
        keep=RECENT,
        through=snapshot.through,
        backlog_cutoff_pending=False,
        entries=[_entry(each) for each in snapshot.recent],
        count=snapshot.count,
        totals=_totals(snapshot),
        newest=snapshot.newest,
        task=snapshot.task,
        successes=snapshot.successes,
        goals=dict(snapshot.goals),
        latest={name: (each.checkpoint, each.result) for name, each in snapshot.latest.items()},
        failed_tasks={_split(each.key): set(each.tasks) for each in snapshot.failed_tasks},
        retired_workers=dict.fromkeys(snapshot.spent_workers),
        eval_sets={name: (each.data, each.examples) for name, each in snapshot.eval_sets.items()},
        folders=list(snapshot.folders),
        nonces=(snapshot.plan_nonce, snapshot.outcome_nonce),
        last_planned_step=snapshot.reached,
        requeued=set(_keys(snapshot.requeued)),
        losses={(each.node, each.incarnation): Losses(each.count, each.until) for each in snapshot.losses},
        ordinals={key: number for number, key in enumerate(_keys(snapshot.ordinals), start=1)},
        before_start=set(_keys(snapshot.before_start)),
        unusable={(each.task, each.node, each.incarnation): each.outcome for each in snapshot.unusable},
    )
    history.succeeded = history.totals.checkpoints["evaluated"] - set(_keys(snapshot.reopened))
    for verdict, keys in snapshot.settled.items():
        history.settled |= dict.fromkeys(_keys(keys), Verdict(verdict))
    for each in snapshot.failures:
        history.failures.setdefault(_split(each.key), {})[each.task] = list(each.outcomes)
    return history


def _totals(snapshot: Snapshot) -> Totals:
    totals = Totals(
        failures=dict(snapshot.failed),
        durations={phase: Duration(list(each.counts), each.total) for phase, each in snapshot.durations.items()},
        best={
            (eval_set, name): Best(
                goal=each.goal,
                number=float.fromhex(each.hex),
                step=each.step,
                folder=each.folder,
                checkpoint=each.checkpoint,
                step_source=each.step_source,
            )
            for eval_set, by_name in snapshot.best.items()
            for name, each in by_name.items()
        },
        changes=dict(snapshot.changes),
        nonfinite={(eval_set, place) for eval_set, places in snapshot.nonfinite.items() for place in places},
    )
    if any(len(each.counts) != len(BUCKETS) for each in snapshot.durations.values()):
        raise ValueError("durations were counted in other buckets")
    totals.checkpoints |= {status: set(_keys(keys)) for status, keys in snapshot.checkpoints.items()}
    return totals


def _recent(entry: Entry) -> Recent:
    if isinstance(entry, Closed):
        return Recent(entry.plan, outcome=entry.outcome)
    return Recent(entry.plan, settlement=entry.settlement)


def _entry(recent: Recent) -> Entry:
    if recent.outcome is not None:
        return Closed(recent.plan, recent.outcome)
    if recent.settlement is None:
        raise ValueError("an entry has neither an outcome nor a settlement")
    return Settled(recent.plan, recent.settlement)


def _join(key: Key) -> str:
    """Return a key as text: a digest has no slash, a name may have some."""
    return f"{key[1]}/{key[0]}"


def _split(text: str) -> Key:
    digest, _, name = text.partition("/")
    return name, digest


def _keys(texts: Iterable[str]) -> Iterable[Key]:
    return map(_split, texts)
