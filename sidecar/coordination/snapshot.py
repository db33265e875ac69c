"""Convert the folded journal to one record, the snapshot, and back. Pure.

The publisher writes a snapshot now and then. A daemon that starts reads it, and then only the later records of the
journal. It uses a snapshot only if that was folded in the same way and ends with a plan and an outcome that are in the
journal. Otherwise it reads the journal from its beginning.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Annotated, ClassVar, Final, TypeVar, cast

from sidecar.coordination.checkpoint_verdicts import CheckpointVerdicts
from sidecar.coordination.comparability import SeenData
from sidecar.coordination.exclusions import RETIRED_WORKERS_KEPT, Exclusions, Losses, UnusableTask
from sidecar.coordination.journal_state import Closed, Entry, EntryLog, JournalState, Settled
from sidecar.coordination.key_set import KeySet, PackedKeys, unpack
from sidecar.coordination.newest_task import NewestTask
from sidecar.coordination.totals import BUCKETS, Best, Durations, SetAside, Totals
from sidecar.errors import RecordError
from sidecar.protocol.codec import dumps, fields_of
from sidecar.protocol.record_limits import SNAPSHOT, AtMost, RecordLimits
from sidecar.protocol.records import SCHEMA, Inlined, Key, Outcome, Plan, Settlement
from sidecar.protocol.states import Verdict

T = TypeVar("T")

FOLD: Final = 13
"""The version of the fold, `JournalState`. Every change of the fold raises it, so that older snapshots are unused."""

Growing = Annotated[T, AtMost(SNAPSHOT.values)]
"""A list or mapping that grows with the run, up to all values of a snapshot: `snapshot_store.write` names more."""

Keys = Growing[tuple[str, ...]]
"""Keys of checkpoints as text."""

_PART: Final = 100
"""The number of keys, or of other texts, that are encoded at the same time. An entry is encoded on its own."""

RECENT: Final = 64
"""The number of newest entries that a daemon retains: enough for the status page."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Save an entry: a plan with its outcome, or with one of its settlements."""

    plan: Plan
    outcome: Outcome | None = None
    settlement: Settlement | None = None

    @classmethod
    def of(cls, entry: Entry) -> "Recent":
        """Return the saved form of an entry of the journal."""
        if isinstance(entry, Closed):
            return cls(entry.plan, outcome=entry.outcome)
        return cls(entry.plan, settlement=entry.settlement)

    def restore(self) -> Entry:
        """Return the entry that was saved."""
        if self.outcome is not None:
            return Closed(self.plan, self.outcome)
        if self.settlement is None:
            raise ValueError("an entry has neither an outcome nor a settlement")
        return Settled(self.plan, self.settlement)


@dataclass(frozen=True, slots=True)
class _KeyTexts:
    """Yield keys as text. Each is made when it is read: all texts of a long run take more memory than the set has."""

    keys: PackedKeys

    @classmethod
    def of(cls, keys: KeySet) -> Keys:
        """Return the texts in place of a tuple of them: they are only iterated over."""
        return cast("Keys", cls(keys.packed()))

    def __iter__(self) -> Iterator[str]:
        """Yield the texts."""
        return (_join(unpack(key)) for key in self.keys)


@dataclass(frozen=True, slots=True)
class Attempts:
    """Save the failed attempts at a checkpoint under one task."""

    key: str
    task: str | None
    outcomes: Growing[tuple[Outcome, ...]]


@dataclass(frozen=True, slots=True)
class FailedTasks:
    """Save the tasks under which a checkpoint failed for good."""

    key: str
    tasks: Growing[tuple[str | None, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedVerdicts:
    """Save `CheckpointVerdicts`, with keys as text.

    `reopened`: the evaluated checkpoints (`SavedTotals.checkpoints`) that do not count as succeeded any more.
    """

    settled: dict[str, Keys]  # by verdict
    failed_tasks: Growing[tuple[FailedTasks, ...]]
    failures: Growing[tuple[Attempts, ...]]
    requeued: Keys
    before_start: Keys = ()
    reopened: Keys = ()

    @classmethod
    def of(cls, verdicts: CheckpointVerdicts, evaluated: KeySet) -> "SavedVerdicts":
        """Return the saved form of verdicts. `evaluated`: the checkpoints that were ever evaluated."""
        settled: dict[str, list[str]] = {}
        for key, verdict in verdicts.settled.items():
            settled.setdefault(verdict, []).append(_join(key))
        return cls(
            settled={verdict: tuple(keys) for verdict, keys in settled.items()},
            failed_tasks=tuple(
                FailedTasks(_join(key), tuple(sorted(tasks, key=str))) for key, tasks in verdicts.failed_tasks.items()
            ),
            failures=tuple(
                Attempts(_join(key), task, tuple(outcomes))
                for key, by_task in verdicts.failures.items()
                for task, outcomes in by_task.items()
            ),
            requeued=_sorted(verdicts.requeued),
            before_start=_sorted(verdicts.before_start),
            reopened=_sorted(key for key in evaluated if key not in verdicts.succeeded),
        )

    def restore(self, evaluated: KeySet) -> CheckpointVerdicts:
        """Return the verdicts that were saved."""
        verdicts = CheckpointVerdicts(
            succeeded=evaluated.without(KeySet(_keys(self.reopened))),
            failed_tasks={_split(failed.key): set(failed.tasks) for failed in self.failed_tasks},
            requeued=_keys(self.requeued),
            before_start=_keys(self.before_start),
        )
        for verdict, keys in self.settled.items():
            verdicts.settled |= dict.fromkeys(map(_split, keys), Verdict(verdict))
        for attempts in self.failures:
            verdicts.failures.setdefault(_split(attempts.key), {})[attempts.task] = list(attempts.outcomes)
        return verdicts


@dataclass(frozen=True, slots=True)
class SavedExclusions:
    """Save `Exclusions` without keys, because each value names its daemon."""

    retired_workers: Annotated[tuple[str, ...], AtMost(2 * RETIRED_WORKERS_KEPT)]
    losses: tuple[Losses, ...] = ()
    unusable: tuple[UnusableTask, ...] = ()

    @classmethod
    def of(cls, exclusions: Exclusions) -> "SavedExclusions":
        """Return the saved form of exclusions."""
        return cls(
            retired_workers=tuple(exclusions.retired_workers),
            losses=tuple(exclusions.losses.values()),
            unusable=tuple(exclusions.unusable.values()),
        )

    def restore(self) -> Exclusions:
        """Return the exclusions that were saved."""
        return Exclusions(
            retired_workers=dict.fromkeys(self.retired_workers),
            losses={(losses.node, losses.incarnation): losses for losses in self.losses},
            unusable={(proof.task, proof.node, proof.incarnation): proof for proof in self.unusable},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTotals:
    """Save `Totals`, with keys as text.

    `best` and `outdated` are by eval set and metric, `best` with the best one first, and `nonfinite` by eval set.
    """

    checkpoints: dict[str, Keys]
    failed: dict[str, int]
    durations: dict[str, Durations]
    best: Growing[dict[str, Growing[dict[str, tuple[Best, ...]]]]]
    changes: Growing[dict[str, int]]
    nonfinite: Growing[dict[str, tuple[str, ...]]]
    outdated: Growing[dict[str, Growing[dict[str, Best]]]]
    set_aside: SetAside

    @classmethod
    def of(cls, totals: Totals) -> "SavedTotals":
        """Return the saved form of totals."""
        best: dict[str, dict[str, tuple[Best, ...]]] = {}
        for (eval_set, name), ranked in totals.ranked.items():
            best.setdefault(eval_set, {})[name] = ranked
        outdated: dict[str, dict[str, Best]] = {}
        for (eval_set, name), value in totals.outdated.items():
            outdated.setdefault(eval_set, {})[name] = value
        nonfinite: dict[str, tuple[str, ...]] = {}
        for eval_set, place in sorted(totals.nonfinite):
            nonfinite[eval_set] = (*nonfinite.get(eval_set, ()), place)
        return cls(
            checkpoints={status: _KeyTexts.of(keys) for status, keys in totals.checkpoints.items()},
            failed=dict(totals.failures),
            durations=dict(totals.durations),
            best=best,
            changes=dict(totals.changes),
            nonfinite=nonfinite,
            outdated=outdated,
            set_aside=replace(totals.set_aside),
        )

    def restore(self) -> Totals:
        """Return the totals that were saved. Raises `ValueError` if they were counted in another way."""
        if any(len(durations.counts) != len(BUCKETS) for durations in self.durations.values()):
            raise ValueError("durations were counted in other buckets")
        best = {(eval_set, name): ranked for eval_set, values in self.best.items() for name, ranked in values.items()}
        outdated = {
            (eval_set, name): value for eval_set, values in self.outdated.items() for name, value in values.items()
        }
        if not all(best.values()):
            raise ValueError("a ranking is empty")
        for value in (*chain.from_iterable(best.values()), *outdated.values()):
            value.number, value.pin, value.plan  # noqa: B018 - raise the error now that they would raise later
        totals = Totals(
            failures=dict(self.failed),
            durations=dict(self.durations),
            ranked=best,
            outdated=outdated,
            set_aside=replace(self.set_aside),
            changes=dict(self.changes),
            nonfinite={(eval_set, place) for eval_set, places in self.nonfinite.items() for place in places},
        )
        totals.checkpoints |= {status: KeySet(map(_split, keys)) for status, keys in self.checkpoints.items()}
        return totals


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """Identify the end of the folded journal, by the number and the nonce of its newest plan and of its outcome."""

    through: int
    plan_nonce: str
    outcome_nonce: str | None  # None for a plan that only settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Save `JournalState` at the time when the newest plan was closed. Keys of checkpoints are `DIGEST/NAME`."""

    LIMITS: ClassVar[RecordLimits] = SNAPSHOT

    run: str
    fold: int
    end: Inlined[JournalEnd]
    count: int
    recent: tuple[Recent, ...]
    newest: Closed | None
    newest_task: Inlined[NewestTask]
    verdicts: Inlined[SavedVerdicts]
    exclusions: Inlined[SavedExclusions]
    eval_sets: Growing[dict[str, SeenData]]
    folders: tuple[str, ...]
    last_planned_step: int | None
    ordinals: Keys = ()  # keys of checkpoints without a step, in order
    totals: Inlined[SavedTotals]
    schema: int = SCHEMA


def take(history: JournalState, run: str) -> Snapshot:
    """Return the snapshot of a state, which must have a plan, no open plan, and no unfinished backlog cut-off."""
    assert history.nonces is not None
    assert history.open is None
    assert not history.backlog_cutoff_pending
    return Snapshot(
        run=run,
        fold=FOLD,
        end=JournalEnd(history.through, *history.nonces),
        count=history.log.count,
        recent=tuple(map(Recent.of, history.entries[-RECENT:])),
        newest=history.newest,
        newest_task=history.newest_task,
        verdicts=SavedVerdicts.of(history.verdicts, history.totals.checkpoints["evaluated"]),
        exclusions=SavedExclusions.of(history.exclusions),
        eval_sets=dict(history.eval_sets),
        folders=tuple(history.folders),
        last_planned_step=history.last_planned_step,
        ordinals=tuple(map(_join, history.ordinals)),
        totals=SavedTotals.of(history.totals),
    )


def encode(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the content of a snapshot's file in parts, which `loads(Snapshot, …)` reads back. No text spans two parts.

    A daemon does this every 200 plans. Memory for all keys as texts would be taken and freed each time, and leave holes
    between what stays.
    """
    before = b"{"
    for name, value in fields_of(snapshot).items():
        yield before + dumps(name) + b":"
        if name == "checkpoints":
            yield from _encode_keys(value)
        elif isinstance(value, tuple):
            yield from _encode_list(value, 1 if name == "recent" else _PART)
        else:
            yield dumps(value)
        before = b","
    yield b"}"


def _encode_keys(by_status: Mapping[str, Iterable[str]]) -> Iterator[bytes]:
    """Yield a JSON object with a list of keys for each status."""
    before = b"{"
    for status, keys in by_status.items():
        yield before + dumps(status) + b":"
        yield from _encode_list(keys, _PART)
        before = b","
    yield b"}"


def _encode_list(values: Iterable[object], together: int) -> Iterator[bytes]:
    """Yield a JSON list, so many values at a time."""
    rest, before = iter(values), b"["
    while part := list(islice(rest, together)):
        yield before + dumps(part)[1:-1]
        before = b","
    yield b"]" if before == b"," else b"[]"


def restore(snapshot: Snapshot) -> JournalState:
    """Return the state in a snapshot. Raises `RecordError` if this version would not have written the snapshot."""
    if snapshot.fold != FOLD:
        raise RecordError(f"the snapshot was folded in another way ({snapshot.fold}, not {FOLD})")
    try:
        return _restore(snapshot)
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise RecordError(f"the snapshot cannot be understood: {type(error).__name__}: {error}") from error


def _restore(snapshot: Snapshot) -> JournalState:
    """Return the state in a snapshot of this version's fold."""
    totals = snapshot.totals.restore()
    return JournalState(
        through=snapshot.end.through,
        backlog_cutoff_pending=False,
        nonces=(snapshot.end.plan_nonce, snapshot.end.outcome_nonce),
        log=EntryLog(keep=RECENT, entries=[recent.restore() for recent in snapshot.recent], count=snapshot.count),
        totals=totals,
        newest=snapshot.newest,
        newest_task=snapshot.newest_task,
        verdicts=snapshot.verdicts.restore(totals.checkpoints["evaluated"]),
        exclusions=snapshot.exclusions.restore(),
        eval_sets=dict(snapshot.eval_sets),
        folders=list(snapshot.folders),
        last_planned_step=snapshot.last_planned_step,
        ordinals={_split(key): number for number, key in enumerate(snapshot.ordinals, start=1)},
    )


def _join(key: Key) -> str:
    """Return a key as text. A digest has no slash, and a name may have some."""
    return f"{key[1]}/{key[0]}"


def _split(text: str) -> Key:
    """Return the key in a text that `_join` made."""
    digest, _, name = text.partition("/")
    return name, digest


def _sorted(keys: Iterable[Key]) -> tuple[str, ...]:
    return tuple(sorted(map(_join, keys)))


def _keys(texts: Iterable[str]) -> set[Key]:
    return set(map(_split, texts))
