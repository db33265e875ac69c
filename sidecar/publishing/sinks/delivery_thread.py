"""Run what delivers to a sink in a thread of its own, end it in time, and show how far it is.

`sinks.delivery` and `state_backup.sender` deliver. A call of a sink that hangs blocks its thread and nothing else.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sidecar.publishing.status import SinkStatus
from sidecar.system.event_log import EventLog

_FIRST_PAUSE_SECONDS: Final = 1.0
_LAST_PAUSE_SECONDS: Final = 60.0
PAUSES: Final = (_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS)
_GIVE_UP_SECONDS: Final = 2.0  # for a sink to end what it was told to give up


class DeliveryThread:
    """Own the thread of a delivery, and the status that other threads read. A subclass defines `work`.

    `changed` waits for news, and for the time of the next attempt; its lock is reentrant. `pauses`: seconds between two
    attempts, the first and the most: each pause is twice as long as the one before it.
    """

    def __init__(
        self,
        name: str,
        log: EventLog,
        *,
        thread: str,
        changed: threading.Condition | None = None,
        pauses: tuple[float, float] = PAUSES,
    ) -> None:
        self.log, self._pauses = log, pauses
        self._changed = changed or threading.Condition()
        self._closing = False
        self._status = SinkStatus(name=name)
        self._thread = threading.Thread(target=self.work, name=thread, daemon=True)

    def work(self) -> None:
        """Deliver until nothing is left after `end`. Runs in the thread."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Deliver what is known, for at most `seconds`, and end the thread."""
        close([self], seconds)

    def end(self) -> None:
        """Let the thread end once it has delivered what is known."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self, until: float) -> bool:
        """Wait for the end of the thread until a time of the monotonic clock, and return whether it ended."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, until - time.monotonic()))
        return not self._thread.is_alive()

    def give_up(self) -> bool:
        """Break off the delivery that is under way, and return whether that is possible."""
        return False

    def _note_failure(self, reason: str) -> None:
        if reason != self._status.failing:  # a full disk may follow a receiver that is down
            self.log.warning("sink_failed", sink=self._status.name, reason=reason, pending=self._status.pending)
        with self._changed:
            self._status = replace(self._status, failing=reason)

    def _note_success(self) -> None:
        if self._status.failing is not None:
            self.log.info("sink_recovered", sink=self._status.name)
        with self._changed:
            self._status = replace(self._status, failing=None)


def close(deliveries: Sequence[DeliveryThread], seconds: float) -> None:
    """Deliver what is known, for at most `seconds` in all, and end the deliveries. One that hangs holds up no other."""
    for delivery in deliveries:
        delivery.end()
    until = time.monotonic() + seconds
    late = [delivery for delivery in deliveries if not delivery.join(until)]
    given_up = [delivery for delivery in late if delivery.give_up()]
    until = time.monotonic() + _GIVE_UP_SECONDS
    for delivery in given_up:
        delivery.join(until)
