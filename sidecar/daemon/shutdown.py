"""Ends a daemon: it drains, says that it left, and goes when the time is over, whether that was heard or not.

No I/O and no clock: times come in, in seconds of the loop's own clock.
"""

from dataclasses import dataclass
from typing import Final

from sidecar.errors import SidecarError

_LAST_BEATS: Final = 2  # after the time to drain, for storage to take the last heartbeat


@dataclass(slots=True, kw_only=True)
class Shutdown:
    """The end of one daemon: how far it has come, and by when it is over."""

    drain_seconds: float  # for what is being evaluated, after a signal
    beat_seconds: float
    storage_seconds: float  # for the last heartbeat, once nothing else is left to do
    code: int | None = None  # to exit with, once only the last heartbeat is left to be written
    exit: SidecarError | int | None = None  # how the daemon ended; None: it runs
    _drain_by: float | None = None
    _gone_by: float = float("inf")

    @property
    def draining(self) -> bool:
        """Return whether a signal came."""
        return self._drain_by is not None

    @property
    def begun(self) -> bool:
        """Return whether nothing new is to be started."""
        return self.draining or self.code is not None

    def drain(self, now: float) -> None:
        """Let what is being evaluated end first, as a signal came."""
        self._drain_by = now + self.drain_seconds
        self._gone_by = min(self._gone_by, self._drain_by + _LAST_BEATS * self.beat_seconds)

    def leave(self, code: int, now: float) -> bool:
        """Note that nothing is left to do but to say so, and return whether that is new."""
        if self.code is not None:
            return False
        self.code = code
        self._gone_by = min(self._gone_by, now + self.storage_seconds)
        return True

    def drained(self, now: float) -> bool:
        """Return whether what is still being evaluated has to be given up."""
        return self._drain_by is not None and now >= self._drain_by

    def is_over(self, now: float) -> bool:
        """Return whether the daemon ends now, even if storage has not taken its last heartbeat."""
        return now >= self._gone_by
