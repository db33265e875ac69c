"""Deliver the results of a run to one sink, in a thread of its own: once, in order, across restarts and nodes.

Only the daemon of the publishing node delivers. Storage or a sink that hangs blocks this thread and nothing else.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sidecar.clock import seconds_of
from sidecar.coordination.journal import read_history
from sidecar.coordination.journal_state import Closed, Entry, JournalState
from sidecar.coordination.storage import Storage
from sidecar.errors import SidecarError
from sidecar.observability.status import SinkStatus, Status
from sidecar.sinks.progress import Progress, read_progress, write_progress
from sidecar.sinks.sink import Evaluation, Sink, SinkRefusedError

_FIRST_PAUSE_SECONDS: Final = 1.0
_LAST_PAUSE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Known:
    """Hold the daemon's knowledge of the journal: its newest entries, and how many there are in all."""

    entries: tuple[Entry, ...] = ()
    count: int = 0

    def closed_after(self, plan: int) -> "list[Closed] | None":
        """Return the evaluations after a plan; None if these entries do not reach back to it."""
        whole = self.count == len(self.entries)
        if not whole and self.entries[0].plan.plan > plan + 1:
            return None
        return list(_evaluations(self.entries, plan))


class Delivery:
    """Deliver results to a sink. The daemon's loop calls `update`; `start` begins the thread, `close` ends it.

    Args:
        sink: The sink.
        storage: The state directory of the run.
        run: Name of the run.
        log: The daemon's log.
    """

    def __init__(self, sink: Sink, storage: Storage, run: str, log: Any) -> None:
        self._sink, self._storage, self._run, self.log = sink, storage, run, log
        self._changed = threading.Condition()
        self._known: _Known | None = None  # None: another node publishes
        self._delivered: Progress | None = None  # None: it must be read
        self._closing = False
        self._status = SinkStatus(sink.name)
        self._thread = threading.Thread(target=self._work, name=f"sink {sink.name}", daemon=True)

    @property
    def status(self) -> SinkStatus | None:
        """Return how far the sink is behind; None if another node delivers. Safe in any thread."""
        with self._changed:
            return self._status if self._known is not None else None

    def update(self, status: Status, history: JournalState) -> None:
        """Note new results, and whether this node delivers them. Never waits."""
        delivers = status.publisher and status.journal_read
        with self._changed:
            if not delivers:
                self._known = self._delivered = None
            elif self._known is None or self._known.count != history.log.count:
                self._known = _Known(tuple(history.entries), history.log.count)
                self._changed.notify_all()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Deliver what is known, for at most `seconds`, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _work(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        done: _Known | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._known not in (None, done))  # noqa: B023
                known = self._known
                if known is None or known == done:
                    return
            try:
                self._deliver(known)
            except Exception as error:  # noqa: BLE001 - sinks of others raise what they like
                self._note_failure(str(error) if isinstance(error, SidecarError) else repr(error))
                with self._changed:
                    if self._closing:
                        return
                    self._changed.wait_for(lambda: self._closing, pause)
                pause = min(2 * pause, _LAST_PAUSE_SECONDS)
            else:
                done, pause = known, _FIRST_PAUSE_SECONDS
                self._note_success()

    def _deliver(self, known: _Known) -> None:
        """Deliver all evaluations that the sink does not have yet."""
        delivered = self._progress(known)
        if delivered is None:
            return
        waiting = known.closed_after(delivered.plan)
        if waiting is None:
            waiting = list(_evaluations(read_history(self._storage).entries, delivered.plan))
        for index, closed in enumerate(waiting):
            self._note_waiting(len(waiting) - index, closed)
            evaluation = self._evaluation(closed, delivered)
            try:
                self._sink.write(evaluation)
                delivered = replace(delivered, plan=evaluation.plan, milliseconds=evaluation.milliseconds)
            except SinkRefusedError as error:
                delivered = replace(delivered, plan=evaluation.plan)
                self._note_refusal(evaluation, str(error))
            write_progress(self._storage, self._sink.name, delivered)
            with self._changed:
                if self._known is None:
                    return  # another node goes on
                self._delivered = delivered
        self._note_waiting(0)

    def _progress(self, known: _Known) -> Progress | None:
        """Return which results the sink has; None if the run has no plan yet."""
        if not known.entries:
            return None
        run = known.entries[-1].plan.run
        with self._changed:
            delivered = self._delivered
        if delivered is None or delivered.run != run:
            delivered = read_progress(self._storage, self._sink.name, run)
        return delivered

    def _evaluation(self, closed: Closed, delivered: Progress) -> Evaluation:
        assert closed.plan.checkpoint is not None
        assert closed.outcome.result is not None
        seconds = seconds_of(closed.outcome.completed_at)
        completed = delivered.milliseconds if seconds is None else round(1000 * seconds)
        return Evaluation(
            run=self._run,
            plan=closed.plan.plan,
            checkpoint=closed.plan.checkpoint,
            result=closed.outcome.result,
            milliseconds=max(completed, delivered.milliseconds + 1),
        )

    # -- what people see ---------------------------------------------------------------------------------------------

    def _note_waiting(self, count: int, first: Closed | None = None) -> None:
        oldest = None if first is None else seconds_of(first.outcome.completed_at)
        with self._changed:
            self._status = replace(self._status, pending=count, oldest_pending=oldest)

    def _note_failure(self, reason: str) -> None:
        if self._status.failing is None:
            self.log.warning("sink_failed", sink=self._sink.name, reason=reason, pending=self._status.pending)
        with self._changed:
            self._status = replace(self._status, failing=reason)

    def _note_success(self) -> None:
        if self._status.failing is not None:
            self.log.info("sink_recovered", sink=self._sink.name)
        with self._changed:
            self._status = replace(self._status, failing=None)

    def _note_refusal(self, evaluation: Evaluation, reason: str) -> None:
        self.log.warning(
            "sink_refused",
            sink=self._sink.name,
            checkpoint=evaluation.checkpoint.name,
            plan=evaluation.plan,
            reason=reason,
        )
        with self._changed:
            self._status = replace(self._status, refused=self._status.refused + 1)


def _evaluations(entries: Sequence[Entry], plan: int) -> Iterator[Closed]:
    """Yield the successful evaluations after a plan."""
    for entry in entries:
        if isinstance(entry, Closed) and entry.plan.plan > plan and entry.outcome.result is not None:
            yield entry
