"""Deliver the events of a run to one sink, in a thread of its own: once, in order, across restarts and nodes.

Only the daemon of the publishing node delivers. Storage or a sink that hangs blocks this thread and nothing else.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sidecar.coordination.closed_plan import has_plan
from sidecar.coordination.journal_state import Entry, JournalState
from sidecar.coordination.run import read_run
from sidecar.coordination.storage import Storage
from sidecar.errors import SidecarError
from sidecar.protocol.codec import dumps
from sidecar.publishing.sinks.dead_letters import add_dead_letter
from sidecar.publishing.sinks.delivery_thread import PAUSES, DeliveryThread
from sidecar.publishing.sinks.journal_events import (
    Place,
    evaluations,
    event_of,
    happened_at,
    is_taken,
    newest_place,
    placed,
    reaches_back,
    run_end,
    stored_entries,
)
from sidecar.publishing.sinks.progress import Progress, read_progress, write_progress
from sidecar.publishing.sinks.sink import (
    Evaluation,
    Event,
    EventSink,
    RunEnd,
    Sink,
    SinkRefusedError,
    SinkUnavailableError,
)
from sidecar.publishing.status import SinkStatus, Status
from sidecar.system.event_log import EventLog

_MOST_PROGRAM_ERRORS: Final = 8
"""Attempts at one event that end in an error of a program, about two minutes, before it is refused for good."""

_PROGRAM_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
"""Errors that a sink raises for a bug or for an event that it cannot handle, and for no receiver that is away."""

MOST: Final = 1000  # events in memory, a few megabytes; the journal is read once for so many

PlacedEntry = tuple[Place, Entry]


class WaitingEvents:
    """Find the events behind a place of the journal, oldest first. Only the first `most` are in memory.

    `storage`: the state directory of the run. `takes`: the classes of the events.
    """

    def __init__(self, storage: Storage, takes: frozenset[type], most: int = MOST) -> None:
        self.more = 0
        """Number of events behind those that `after` returned."""
        self._storage, self._takes, self._most = storage, takes, most
        self._events: list[PlacedEntry] = []
        self._counted: Place | None = None  # all events up to here are in `_events` or `more`

    def after(self, position: Place, since: Callable[[Place], Sequence[Entry] | None]) -> Sequence[PlacedEntry]:
        """Return the first events behind a place that is never before an earlier one; none if there is no event.

        `since` returns the newest entries of the journal, or None if they do not hold all that is behind a place. Then
        the journal is read from storage. Raises as `stored_entries`.
        """
        waiting = [event for event in self._events if event[0] > position]
        counted, more = self._counted, self.more
        if counted is None or (more and not waiting):
            counted, more = position, 0
        known = since(counted)
        for place, entry in placed(stored_entries(self._storage) if known is None else known):
            if place <= counted:
                continue
            counted = place
            if not is_taken(entry, self._takes):
                continue
            if more or len(waiting) == self._most:
                more += 1
            else:
                waiting.append((place, entry))
        self._events, self.more, self._counted = waiting, more, counted
        return waiting


class _HandedOver(Exception):  # noqa: N818 - not an error
    """Another node delivers, or did meanwhile."""


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """Identify the time during which this node delivers, without an interruption. `began`: its place in the journal."""

    began: Place
    waiting: WaitingEvents


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """Hold the daemon's knowledge: the newest entries of the journal, how many there are, and the end of the run."""

    turn: _Turn
    entries: tuple[Entry, ...]
    count: int
    end: RunEnd | None

    def since(self, place: Place) -> Sequence[Entry] | None:
        """Return entries that hold everything after a place; None if these do not."""
        return self.entries if self.count == len(self.entries) or reaches_back(self.entries, place) else None

    def new_since(self, earlier: "_Known", takes: frozenset[type]) -> list[Entry]:
        """Return the events among the entries that `earlier` does not have. The end of the run is none of them."""
        first = max(0, len(self.entries) - (self.count - earlier.count))
        return [entry for entry in self.entries[first:] if is_taken(entry, takes)]


@dataclass(slots=True)
class _ProgramErrors:
    """Count the errors of a sink's program on one event, and give the event up after many.

    `run_dir`: the run's state directory, for the event; None: it is not kept.
    """

    run_dir: Path | None
    event: str = ""  # its id
    count: int = 0

    def giving_up(self, sink: str, event: Event, error: Exception) -> str | None:
        """Note an error, and return why the event is given up; None if it is tried again.

        The event is kept among the dead letters, so that a person can deliver it once the program is corrected. Raises
        `SinkUnavailableError` if that fails.
        """
        self.event, self.count = event.id, self.count + 1 if event.id == self.event else 1
        if self.count < _MOST_PROGRAM_ERRORS:
            return None
        reason = f"the sink's program failed {self.count} times: {error!r}"
        if self.run_dir is None:
            return reason
        return f"{reason}; it is in {add_dead_letter(self.run_dir, sink, dumps(event), reason, time.time())}"


class Delivery(DeliveryThread):
    """Deliver events to a sink. The daemon's loop calls `update`; `start` begins the thread, `close` ends it.

    `run_dir`: the run's state directory, for events on which the program of the sink fails; None: they are not kept.
    `most_waiting`: number of events that are held in memory. `changed`, `pauses`: see `DeliveryThread`.
    """

    def __init__(
        self,
        sink: Sink | EventSink,
        storage: Storage,
        run: str,
        log: EventLog,
        *,
        run_dir: Path | None = None,
        most_waiting: int = MOST,
        changed: threading.Condition | None = None,
        pauses: tuple[float, float] = PAUSES,
    ) -> None:
        super().__init__(sink.name, log, thread=f"sink {sink.name}", changed=changed, pauses=pauses)
        self._most_waiting = most_waiting
        self.sink, self._storage, self._run = sink, storage, run
        self._program_errors = _ProgramErrors(run_dir)
        self._event_sink = sink if isinstance(sink, EventSink) else None
        self._known: _Known | None = None  # None: another node publishes
        self._done: _Known | None = None  # all of this was delivered
        self._delivered: Progress | None = None  # None: it must be read
        self._recorded: Progress | None = None  # the newest one that is in storage
        self._later = 0  # events that became known since the thread last looked, in its turn

    @property
    def _takes(self) -> frozenset[type]:
        return frozenset({Evaluation}) if self._event_sink is None else self._event_sink.takes

    @property
    def status(self) -> SinkStatus | None:
        """Return how far the sink is behind; None if another node delivers. Safe in any thread."""
        with self._changed:
            return self._status if self._known is not None else None

    @property
    def has_delivered(self) -> bool:
        """Return whether nothing is left to deliver on this node. Safe in any thread."""
        with self._changed:
            return self._known is None or self._known is self._done

    def update(self, status: Status, history: JournalState) -> None:
        """Note new events, and whether this node delivers them. Never waits."""
        delivers = status.publisher and status.journal_read
        end = None
        if status.ended is not None and RunEnd in self._takes:
            end = run_end(self._run, history, status.ended.reason, status.ended.failed)
        with self._changed:
            if not delivers:
                self._known = self._delivered = None
            elif self._known is None or (self._known.count, self._known.end) != (history.log.count, end):
                before = self._known
                turn = self._turn(history) if before is None else before.turn
                self._known = _Known(turn, tuple(history.entries), history.log.count, end)
                self._note_later(before, self._known)
                self._changed.notify_all()

    def give_up(self) -> bool:
        """Break off the delivery that is under way, and return whether the sink can do that."""
        if self._event_sink is not None:
            self._event_sink.close()
        return self._event_sink is not None

    def work(self) -> None:
        """Deliver until nothing is left after `end`. Runs in the thread."""
        pause = self._pauses[0]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._known not in (None, self._done))
                known, self._later = self._known, 0
                if known is None or known is self._done:
                    return
            try:
                self._deliver(known)
            except _HandedOver:
                continue
            except Exception as error:  # noqa: BLE001 - sinks of others raise what they like
                self._note_failure(str(error) if isinstance(error, SidecarError) else repr(error))
                with self._changed:
                    if self._closing:
                        return
                    self._changed.wait_for(lambda: self._closing or self._ends_now(known), pause)  # noqa: B023
                pause = min(2 * pause, self._pauses[1])
            else:
                with self._changed:
                    self._done = known
                pause = self._pauses[0]
                self._note_success()

    def _ends_now(self, known: _Known) -> bool:
        """Return whether the run ended meanwhile: then there is no time for a long pause."""
        return self._known is not None and self._known.end is not None and known.end is None

    def _deliver(self, known: _Known) -> None:
        """Deliver all events that the sink does not have yet."""
        delivered = self._progress(known)
        if delivered is None:
            return
        waiting = known.turn.waiting
        ends = known.end is not None and known.end.plan != delivered.ended
        while first := waiting.after(delivered.position, known.since):
            for index, (place, entry) in enumerate(first):
                self._note_waiting(len(first) - index + waiting.more + ends, entry)
                event = event_of(entry, place, self._run, delivered.milliseconds)
                assert event is not None
                delivered = self._write(event, delivered.moved_to(place), known.turn)
        if known.end is not None and ends:
            self._note_waiting(1)
            now = max(round(1000 * time.time()), delivered.milliseconds + 1)
            end = replace(known.end, milliseconds=now, id=f"{delivered.run}-{known.end.plan}-end")
            self._write(end, replace(delivered, ended=end.plan), known.turn)
        self._note_waiting(0)

    def _write(self, event: Event, delivered: Progress, turn: _Turn) -> Progress:
        """Deliver an event and record that; return the new progress. Raises `_HandedOver` if another node goes on."""
        try:
            self.sink.write(event)  # type: ignore[arg-type]  # it is of the classes that the sink takes
        except SinkRefusedError as error:
            self._note_refusal(event, str(error))
        except _PROGRAM_ERRORS as error:
            if (reason := self._program_errors.giving_up(self.sink.name, event, error)) is None:
                raise
            self._note_refusal(event, reason)
        delivered = replace(delivered, milliseconds=event.milliseconds)
        self._remember(delivered, turn)  # while it cannot be recorded, the event is not delivered again
        return self._record(delivered, turn)

    def _record(self, delivered: Progress, turn: _Turn) -> Progress:
        """Write the progress into storage, and return it.

        Raises `_HandedOver` if this node's turn is over, or if another node, which took its turn meanwhile, is further.
        """
        stored = read_progress(self._storage, self.sink.name, delivered.run)
        is_behind = stored is not None and delivered.is_before(stored)
        if not is_behind and (stored is not None or self._is_current(turn)):  # else it may be in the way of a new run
            write_progress(self._storage, self.sink.name, delivered)
            self._recorded = delivered
        if is_behind or not self._is_current(turn):
            self._remember(None, turn)
            raise _HandedOver
        return delivered

    def _turn(self, history: JournalState) -> _Turn:
        return _Turn(newest_place(history), WaitingEvents(self._storage, self._takes, self._most_waiting))

    def _is_current(self, turn: _Turn) -> bool:
        with self._changed:
            return self._known is not None and self._known.turn is turn

    def _remember(self, delivered: Progress | None, turn: _Turn) -> None:
        """Remember the progress in this turn; None: read it again."""
        with self._changed:
            if self._is_current(turn):
                self._delivered = delivered

    def _progress(self, known: _Known) -> Progress | None:
        """Return which events the sink has; None if the run does not exist yet.

        Read them when this node begins to deliver. Then a sink that has a memory is told of the past.
        """
        with self._changed:
            delivered = self._delivered if self._is_current(known.turn) else None
        run = known.entries[-1].plan.run if known.entries else None
        if delivered is not None and run in (None, delivered.run):
            return delivered if delivered == self._recorded else self._record(delivered, known.turn)
        run = run or read_run(self._storage)
        if run is None:
            return None
        delivered = read_progress(self._storage, self.sink.name, run, self._note_damage)
        if delivered is not None:
            self._reject_impossible(delivered, known)
        if self._event_sink is None:
            delivered = delivered or Progress(run=run)
        else:
            if delivered is None:  # the first start: what happened before this node's turn is the past
                delivered = Progress(run=run).moved_to(known.turn.began)
                write_progress(self._storage, self.sink.name, delivered)
            self._event_sink.resume(self._past(known, delivered))
        self._recorded = delivered
        self._remember(delivered, known.turn)
        return delivered

    def _reject_impossible(self, delivered: Progress, known: _Known) -> None:
        """Raise `SinkUnavailableError` if the journal does not have the plan: no event would come for a long time.

        It is asked again, because another node may have delivered what is not visible here yet.
        """
        newest = known.entries[-1].plan.plan if known.entries else 0
        if delivered.plan > newest and not has_plan(self._storage, delivered.plan):
            raise SinkUnavailableError(
                f"sinks/{self.sink.name}.json in the run's state directory names plan {delivered.plan}, which is not "
                "in the journal: if it stays so, delete the file"
            )

    def _past(self, known: _Known, delivered: Progress) -> Iterable[Evaluation]:
        whole = known.count == len(known.entries)
        entries = known.entries if whole else stored_entries(self._storage)
        return evaluations(placed(entries), self._run, delivered.position)

    # -- what people see ---------------------------------------------------------------------------------------------

    def _note_later(self, before: _Known | None, known: _Known) -> None:
        """Count what became known: the thread counts only what it delivers, and a call of the sink may hang."""
        if before is None:  # a new turn: the thread must first read what the sink has
            self._later = 0
            return
        new = known.new_since(before, self._takes)
        count = len(new) + (known.end is not None and before.end is None)
        oldest = self._status.oldest_pending
        if oldest is None and new:
            oldest = happened_at(new[0])
        self._later += count
        self._status = replace(self._status, pending=self._status.pending + count, oldest_pending=oldest)

    def _note_waiting(self, count: int, first: Entry | None = None) -> None:
        oldest = None if first is None else happened_at(first)
        with self._changed:
            self._status = replace(self._status, pending=count + self._later, oldest_pending=oldest)

    def _note_damage(self, path: str, has_copy: bool) -> None:
        if has_copy:
            follows = "its copy is used, so the newest event may come twice"
        elif self._event_sink is None:
            follows = "all results of the run are delivered again"
        else:
            follows = "the sink begins anew, and events that waited are not delivered"
        self.log.warning("sink_progress_damaged", sink=self.sink.name, path=path, follows=follows)

    def _note_refusal(self, event: Event, reason: str) -> None:
        checkpoint = event.checkpoint.name if isinstance(event, Evaluation) else getattr(event, "checkpoint", None)
        self.log.warning("sink_refused", sink=self.sink.name, checkpoint=checkpoint, plan=event.plan, reason=reason)
        with self._changed:
            self._status = replace(self._status, refused=self._status.refused + 1)
