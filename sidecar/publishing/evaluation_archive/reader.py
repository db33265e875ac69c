"""Read the past of a run for the status page, in one thread that starts at the first request for it.

A daemon that nobody looks at reads nothing and holds nothing. The first request starts the thread, which reads the
journal once. The daemon's loop then reports new entries, as it does to sinks. Without requests for ten minutes the
thread forgets everything and ends. HTTP requests read what the thread has; only the thread waits for storage.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from sidecar.coordination.closed_plan import read_closed
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import Closed, Entry, EntryLog, JournalState
from sidecar.coordination.run import read_run
from sidecar.coordination.storage import Storage
from sidecar.errors import RecordError, SidecarError, StorageLostError
from sidecar.protocol.records import Outcome
from sidecar.publishing.evaluation_archive.confusion import matrices
from sidecar.publishing.evaluation_archive.evaluations import ArchivedEvaluations
from sidecar.publishing.report import closed_row, numbers

T = TypeVar("T")

DETAILS_KEPT: Final = 16
"""The number of evaluations whose details are held: those that somebody looked at last."""

_RECORDS: Final = 100  # read before the progress is reported, and a request may read what is there
_MOST_SAVES: Final = 64  # larger groups than any that was seen


@dataclass(frozen=True, slots=True)
class _Known:
    """Hold the loop's knowledge of the journal."""

    entries: tuple[Entry, ...] = ()  # the newest
    count: int = 0  # of all entries
    through: int = 0  # the newest plan

    @property
    def run(self) -> str | None:
        """Return the id of the run; None if there is no entry yet."""
        return self.entries[-1].plan.run if self.entries else None


_NOTHING: Final = _Known()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTiming:
    """Hold how long a reader pauses after a failure, at first and at most, and when it forgets what nobody asks for."""

    first_pause_seconds: float = 1.0
    last_pause_seconds: float = 30.0
    idle_seconds: float = 600.0


@dataclass(eq=False)
class ArchiveReader:
    """Read the past of a run when somebody asks for it. The daemon's loop calls `update`."""

    storage: Storage  # the state directory of the run
    log_of: Callable[[Closed], str | None] = lambda _: None  # returns the log file of a worker of this node
    now: Callable[[], float] = time.monotonic
    timing: ArchiveTiming = field(default_factory=ArchiveTiming)
    # Guards all fields below; nobody holds it while storage is read
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _known: _Known = field(default_factory=lambda: _NOTHING)
    _followed: _Known = field(default_factory=lambda: _NOTHING)  # what the thread has added
    _archive: ArchivedEvaluations | None = None  # None: nobody asked
    _run: str | None = None
    _through: int = 0
    _whole: bool = False  # the journal was read to its end once
    _failing: str | None = None
    _asked_at: float = 0.0
    _wanted: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _details: OrderedDict[int, dict[str, Any] | None] = field(default_factory=OrderedDict)  # None: no such evaluation

    def update(self, _: object, history: JournalState) -> None:
        """Note what the loop knows. Never waits for storage."""
        if history.log.count == self._known.count and history.through == self._known.through:
            return
        with self._changed:
            self._known = _Known(tuple(history.entries), history.log.count, history.through)
            self._changed.notify_all()

    # -- requests ----------------------------------------------------------------------------------------------------

    def progress(self) -> dict[str, Any]:
        """Return how much of the journal was read: `state`, `share` from 0 to 1, and `reason` of a failure."""
        with self._changed:
            self._begin()
            state = "read" if self._whole else "reading" if self._failing is None else "failing"
            share = 1.0 if self._whole else min(1.0, self._through / max(1, self._known.through))
            return {"state": state, "share": round(share, 3), "reason": self._failing}

    def read(self, question: Callable[[ArchivedEvaluations], T]) -> T:
        """Return the answer to a question about the evaluations that were read so far."""
        with self._changed:
            return question(self._begin())

    def details(self, plan: int) -> dict[str, Any] | None:
        """Return everything about an evaluation, or None until it was read. Raises `LookupError` if there is none."""
        with self._changed:
            archive = self._begin()
            if plan not in self._details:
                if self._whole and not any(row.attempt is not None for row in archive.of_plan(plan)):
                    raise LookupError(f"plan {plan} evaluated nothing, or has not ended")
                self._wanted[plan] = None
                while len(self._wanted) > DETAILS_KEPT:
                    self._wanted.popitem(last=False)
                self._changed.notify_all()
                return None
            self._details.move_to_end(plan)
            if (found := self._details[plan]) is None:
                raise LookupError(f"the records of plan {plan} cannot be read")
            return found

    def _begin(self) -> ArchivedEvaluations:
        """Return the evaluations that were read, and start the thread unless it runs. The caller holds the lock."""
        self._asked_at = self.now()
        if self._archive is None:
            # The thread reads these at once. Before they are set, it would take what was forgotten for read.
            self._archive, self._through, self._whole, self._failing = ArchivedEvaluations(), 0, False, None
            try:
                threading.Thread(target=self._work, name="archive", daemon=True).start()
            except RuntimeError:  # there are too many: the next question tries again
                self._archive = None
                raise
        return self._archive

    # -- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        pause = self.timing.first_pause_seconds
        while True:
            try:
                if not self._whole:
                    self._read_all()
                self._follow()
                self._read_details()
            except Exception as error:  # noqa: BLE001 - the page says that it failed, and it is tried again
                with self._changed:
                    self._failing = str(error) if isinstance(error, SidecarError) else repr(error)
                    self._changed.wait(pause)
                    if self._forgets():
                        return
                pause = min(2 * pause, self.timing.last_pause_seconds)
                continue
            pause = self.timing.first_pause_seconds
            with self._changed:
                self._failing = None
                self._changed.wait_for(self._has_work, self.timing.idle_seconds)
                if not self._has_work() and self._forgets():
                    return

    def _forgets(self) -> bool:
        """Forget everything if nobody asked for long; return whether it did. The caller holds the lock."""
        if self.now() - self._asked_at < self.timing.idle_seconds:
            return False
        self._archive = None
        self._details.clear()
        return True

    def _has_work(self) -> bool:
        return bool(self._wanted) or self._known is not self._followed

    def _read_all(self) -> None:
        """Read the journal to its end, in steps."""
        archive, history = ArchivedEvaluations(), JournalState(log=EntryLog(keep=1))
        with self._changed:
            self._archive, self._through, self._run = archive, 0, None
        if (run := read_run(self.storage)) is not None:
            self._run, journal = run, Journal(self.storage, run)
            while records := journal.read_new(_RECORDS):
                entries = [entry for record in records for entry in history.apply(record)]
                with self._changed:
                    for entry in entries:
                        archive.add(entry)
                    self._through = history.through
        with self._changed:
            self._whole = True

    def _follow(self) -> None:
        """Add the entries that the loop reported since. Read all anew if some are missing, or if the run is another."""
        with self._changed:
            archive, known = self._archive, self._known
            assert archive is not None
            missing, same_run = known.count - archive.count, known.run in (None, self._run)
            if same_run and missing <= len(known.entries):
                for entry in known.entries[len(known.entries) - missing :] if missing > 0 else ():
                    archive.add(entry)
                self._through, self._followed = max(self._through, known.through), known
                return
            self._whole = False
            self._details.clear()
        self._read_all()
        with self._changed:
            self._followed = known

    def _read_details(self) -> None:
        """Read the evaluations that somebody asked for."""
        while True:
            with self._changed:
                if not self._wanted:
                    return
                plan, _ = self._wanted.popitem()  # the one that was asked for last
            found = self._details_of(plan)
            with self._changed:
                self._details[plan] = found
                while len(self._details) > DETAILS_KEPT:
                    self._details.popitem(last=False)

    def _details_of(self, number: int) -> dict[str, Any] | None:
        """Return the details of a plan; None if its records are missing or damaged. Raises `StorageError`."""
        try:
            closed = read_closed(self.storage, number, self._run)
        except (RecordError, StorageLostError):
            return None
        if closed is None or closed.plan.checkpoint is None:
            return None
        with self._changed:
            row = (
                next((row for row in self._archive.of_plan(number) if row.attempt is not None), None)
                if self._archive
                else None
            )
        try:
            found = details_json(closed, self._saved(closed.outcome))
        except _NoStatesError:
            found = details_json(closed)
        found["states_removed"] = bool(found["saves"]) and self._is_empty(closed.plan.folder)
        numbered = {} if row is None else {"step": row.step, "step_source": row.step_source, "final": row.final}
        return found | numbered | {"log": self.log_of(closed)}

    def _is_empty(self, folder: str) -> bool:
        """Return whether nothing is in a folder, or it is not there; False if that cannot be read."""
        try:
            return not self.storage.names(folder)
        except SidecarError:
            return False

    def _saved(self, outcome: Outcome) -> Iterator[bytes]:
        """Yield the metric states that each rank saved. Raises `_NoStatesError` unless all are there."""
        result = outcome.result
        if result is None or len(result.saves) > _MOST_SAVES:
            return
        for folder in result.saves:
            try:
                content = self.storage.read(f"{folder}/states.json")
            except SidecarError as error:
                raise _NoStatesError from error
            if content is None:
                raise _NoStatesError
            yield content


class _NoStatesError(Exception):
    """The metric states of a rank are missing, or cannot be read."""


def details_json(closed: Closed, saved: Iterable[bytes] = ()) -> dict[str, Any]:
    """Return the row of `sidecar history --json` with everything else that the journal knows of a plan.

    `closed`: the plan and its outcome. `saved`: the metric states that the ranks saved, which hold the confusion
    matrices.
    """
    plan, outcome, result = closed.plan, closed.outcome, closed.outcome.result
    return closed_row(closed) | {
        "proposer": plan.proposer,
        "closed_by": outcome.closed_by,
        "node": outcome.node,
        "rank": outcome.rank,
        "odd": list(outcome.odd),
        "task": plan.task,
        "members": [asdict(member) for member in plan.members or ()],
        "variables": result and result.variables,
        "profile": {} if result is None else dict(result.profile),
        "data": {} if result is None else {name: asdict(data) for name, data in result.data.items()},
        "classes": {}
        if result is None
        else {
            eval_set: {metric: numbers(by_class) for metric, by_class in by_metric.items()}
            for eval_set, by_metric in result.classes.items()
        },
        "slices": {}
        if result is None
        else {
            eval_set: {
                label: {"examples": one.examples, "metrics": numbers(one.metrics)} for label, one in slices.items()
            }
            for eval_set, slices in result.slices.items()
        },
        "saves": [] if result is None else list(result.saves),
        "states_removed": False,
        "warnings": [] if result is None else result.warnings(),
        "notes": [] if result is None else list(result.notes),
        "confusion": [] if result is None else matrices(result, saved),
    }
