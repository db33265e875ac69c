"""Read the past of a run for the status page, in one thread that starts at the first request for it.

A daemon that nobody looks at reads nothing and holds nothing. The first request starts the thread, which reads the
journal once. The daemon's loop then reports new entries, as it does to sinks. Without requests for ten minutes the
thread forgets everything and ends. HTTP requests read what the thread has; only the thread waits for storage.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import Entry, EntryLog, JournalState
from sidecar.coordination.run import read_run
from sidecar.errors import SidecarError
from sidecar.publishing.evaluation_archive.curve import curve_json
from sidecar.publishing.evaluation_archive.details import DetailsReader, Other
from sidecar.publishing.evaluation_archive.evaluations import ArchivedEvaluations, Part

T = TypeVar("T")

DETAILS_KEPT: Final = 16
"""The number of evaluations whose details are held: those that somebody looked at last."""

PART_POINTS: Final = 500
"""The most points of the curve of a class or slice."""

_RECORDS: Final = 100  # read before the progress is reported, and a request may read what is there


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

_Question = tuple[int, int | None] | tuple[int, tuple[Other, ...]] | Part
"""A plan, and the one or the numbers that it is compared with; or a class or slice: its numbers of all plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTiming:
    """Hold how long a reader pauses after a failure, at first and at most, and when it forgets what nobody asks for."""

    first_pause_seconds: float = 1.0
    last_pause_seconds: float = 30.0
    idle_seconds: float = 600.0


@dataclass(eq=False)
class ArchiveReader:
    """Read the past of a run when somebody asks for it. The daemon's loop calls `update`."""

    details_reader: DetailsReader
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
    _wanted: OrderedDict[_Question, None] = field(default_factory=OrderedDict)
    _answers: OrderedDict[_Question, dict[Any, Any] | None] = field(default_factory=OrderedDict)  # None: there is none

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
        return self._answer((plan, None))

    def comparison(self, new: int, old: int) -> dict[str, Any] | None:
        """Return in what two evaluations differ, or None until they were read. Raises as `details`."""
        return self._answer((new, old))

    def distances(self, plan: int, others: tuple[Other, ...]) -> dict[Other, dict[str, Any]] | None:
        """Return the difference of an evaluation from each number, or None until it was read. Raises as `details`."""
        return self._answer((plan, others))

    def part_curve(self, part: Part) -> dict[str, Any] | None:
        """Return the curve of a class or slice, or None until the journal was read for it. Raises as `details`."""
        return self._answer(part)

    def _answer(self, question: _Question) -> dict[Any, Any] | None:
        with self._changed:
            archive = self._begin()
            if question not in self._answers:
                for plan in question if self._whole and not isinstance(question, Part) else ():
                    if isinstance(plan, int) and not any(row.attempt is not None for row in archive.of_plan(plan)):
                        raise LookupError(f"plan {plan} evaluated nothing, or has not ended")
                self._wanted[question] = None
                while len(self._wanted) > DETAILS_KEPT:
                    self._wanted.popitem(last=False)
                self._changed.notify_all()
                return None
            self._answers.move_to_end(question)
            if (found := self._answers[question]) is None and isinstance(question, Part):
                raise LookupError(f"no evaluation has a {question.kind} with this name and metric on this eval set")
            if found is None:
                raise LookupError(f"the records of plan {' or '.join(str(p) for p in question if p)} cannot be read")
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
                self._read_answers()
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
        self._answers.clear()
        return True

    def _has_work(self) -> bool:
        return bool(self._wanted) or self._known is not self._followed

    def _read_all(self) -> None:
        """Read the journal to its end, in steps."""
        archive, history = ArchivedEvaluations(), JournalState(log=EntryLog(keep=1))
        with self._changed:
            self._archive, self._through, self._run = archive, 0, None
        if (run := read_run(self.details_reader.storage)) is not None:
            self._run = run
            for entries in self._entries(run, history):
                with self._changed:
                    for entry in entries:
                        archive.add(entry)
                    self._through = history.through
        with self._changed:
            self._whole = True

    def _entries(self, run: str, history: JournalState) -> Iterator[list[Entry]]:
        """Yield the entries of the journal, some at a time. `history` takes them."""
        journal = Journal(self.details_reader.storage, run)
        while records := journal.read_new(_RECORDS):
            yield [entry for record in records for entry in history.apply(record)]

    def _part_curve(self, part: Part) -> dict[str, Any] | None:
        """Return the curve of a class or slice from the whole journal; None if it has no number."""
        archive = ArchivedEvaluations()
        for entries in () if self._run is None else self._entries(self._run, JournalState(log=EntryLog(keep=1))):
            for entry in entries:
                archive.add(part.of(entry))
        return curve_json(archive, part.eval_set, part.metric, points=PART_POINTS, smoothing=0.0)

    def _follow(self) -> None:
        """Add the entries that the loop reported since. Read all anew if some are missing, or if the run is another."""
        with self._changed:
            archive, known = self._archive, self._known
            assert archive is not None
            missing, same_run = known.count - archive.count, known.run in (None, self._run)
            if same_run and missing <= len(known.entries):
                for entry in known.entries[len(known.entries) - missing :] if missing > 0 else ():
                    archive.add(entry)
                for old in [each for each in self._answers if isinstance(each, Part)] if missing > 0 else ():
                    del self._answers[old]
                self._through, self._followed = max(self._through, known.through), known
                return
            self._whole = False
            self._answers.clear()
        self._read_all()
        with self._changed:
            self._followed = known

    def _read_answers(self) -> None:
        """Read the evaluations that somebody asked for."""
        while True:
            with self._changed:
                if not self._wanted:
                    return
                question, _ = self._wanted.popitem()  # the one that was asked for last
            found = self._found(question)
            with self._changed:
                self._answers[question] = found
                while len(self._answers) > DETAILS_KEPT:
                    self._answers.popitem(last=False)

    def _found(self, question: _Question) -> dict[Any, Any] | None:
        if isinstance(question, Part):
            return self._part_curve(question)
        plan, other = question
        if isinstance(other, tuple):
            return self.details_reader.distances(plan, other, self._run)
        if other is not None:
            return self.details_reader.comparison(plan, other, self._run)
        details = self.details_reader.details(plan, self._run)
        return None if details is None else details | self._numbered(plan)

    def _numbered(self, plan: int) -> dict[str, Any]:
        """Return the step that the archive gave to an evaluation, and whether its failure is final."""
        with self._changed:
            rows = () if self._archive is None else self._archive.of_plan(plan)
            row = next((row for row in rows if row.attempt is not None), None)
        return {} if row is None else {"step": row.step, "step_source": row.step_source, "final": row.final}
