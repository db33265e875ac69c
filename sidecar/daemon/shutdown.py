"""Control the end of a daemon: it drains, writes that it left, and ends when the time is over in any case.

No I/O and no clock: times are arguments, in seconds of the loop's own clock.
"""

from dataclasses import dataclass
from typing import Final

from sidecar.errors import SidecarError
from sidecar.publishing.status import Ended

_LAST_BEATS: Final = 2  # beats after the time to drain, in which storage can take the last heartbeat


@dataclass(slots=True, kw_only=True)
class Shutdown:
    """Hold the state of one daemon's end, and the time by which it is over."""

    drain_seconds: float  # for the running evaluation, after a signal
    beat_seconds: float
    storage_seconds: float  # for the last heartbeat, once nothing else is left to do
    code: int | None = None  # the exit code, once only the last heartbeat is left to write
    exit: SidecarError | int | None = None  # how the daemon ended; None: it runs
    sinks_seconds: float = 0.0  # for sinks, such as hooks, to take the end of the run, before this node leaves
    ended: Ended | None = None  # the run is over, and the sinks learn of it
    _leaves_at: float = 0.0  # when this node leaves even if the sinks have not taken the end
    _drain_by: float | None = None
    _gone_by: float = float("inf")

    @property
    def draining(self) -> bool:
        """Return whether a signal came."""
        return self._drain_by is not None

    @property
    def begun(self) -> bool:
        """Return whether nothing new may be started."""
        return self.draining or self.code is not None

    def drain(self, now: float) -> None:
        """Begin to drain, because a signal came: the running evaluation may end first."""
        self._drain_by = now + self.drain_seconds
        self._gone_by = min(self._gone_by, self._drain_by + _LAST_BEATS * self.beat_seconds)

    def leave(self, code: int, now: float) -> None:
        """Note that only the last heartbeat is left to write, unless that is known."""
        if self.code is None:
            self.code = code
            self._gone_by = min(self._gone_by, now + self.storage_seconds)

    def end(self, how: SidecarError | int) -> None:
        """End the daemon now, with an exit code or an error."""
        self.exit = how

    def may_leave(self, ended: Ended, now: float, *, delivered: bool) -> bool:
        """Return whether this node may leave a run that is over: sinks have taken that, or their time is over.

        Until then the node publishes, so that no other one delivers the same. A wait that was broken off begins anew.
        """
        if self.ended is None:
            self.ended, self._leaves_at = ended, now + self.sinks_seconds
            return self.sinks_seconds == 0
        return delivered or now >= self._leaves_at

    def go_on(self) -> None:
        """Note that the run is not over: something new came."""
        if self.code is None:
            self.ended = None

    def drained(self, now: float) -> bool:
        """Return whether a running evaluation must be given up."""
        return self._drain_by is not None and now >= self._drain_by

    def is_over(self, now: float) -> bool:
        """Return whether the daemon ends now, even if storage has not taken its last heartbeat."""
        return now >= self._gone_by
