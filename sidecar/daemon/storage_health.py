"""Track whether shared storage answers the requests of one daemon's loop.

No I/O and no clock: times are arguments, in seconds of the loop's own clock.
"""

from dataclasses import dataclass, field
from typing import Final

_NEWER_RELEASE: Final = "the journal needs a newer release of this daemon"
_MOST_TOLD: Final = 6  # messages about one failure of storage
_MARGIN_SECONDS: Final = 0.01  # rounding in clocks must not make the loop turn just before a bound


@dataclass(slots=True, kw_only=True)
class StorageHealth:
    """Hold the open request to storage, since when storage is silent, and why it failed last."""

    answered_at: float
    timeout_seconds: float  # after a longer silence this node is not ready
    beat_seconds: float  # storage is asked at least this often; after a failure it is not asked for as long
    asked: object | None = None  # the request that is not answered yet
    asked_at: float = 0.0
    problem: str | None = None  # why it failed last
    blocked_until: float = float("-inf")
    needs_newer_release: bool = False  # the journal has records that this release cannot read
    _told: list[str] = field(default_factory=list)  # the messages of this failure that were logged
    _failed_at_checkpoints: bool = False  # the problem is about checkpoints only: nodes can still agree

    def ask(self, request: object, now: float) -> None:
        """Note the request that was submitted. There is one at a time."""
        self.asked, self.asked_at = request, now

    def answer(self, now: float) -> float:
        """Note that the response came, and return when it was requested."""
        asked_at = now if self.asked is None else self.asked_at
        self.asked, self.answered_at = None, now
        return asked_at

    def fail(self, message: str, now: float, *, at_checkpoints: bool) -> bool:
        """Note that the response was an error, and return whether it is to be logged.

        It is, once until storage works again, whatever other errors come between: if all files fail, each of them has a
        message of its own. After some messages of one failure no others are logged.
        """
        problem = f"{_NEWER_RELEASE}: {message}" if self.needs_newer_release else message
        is_new = problem not in self._told and len(self._told) < _MOST_TOLD
        if is_new:
            self._told.append(problem)
        self.problem, self._failed_at_checkpoints = problem, at_checkpoints
        if not at_checkpoints:
            self.blocked_until = now + self.beat_seconds
        return is_new

    def stand_by(self) -> None:
        """Note that the journal has records that this release cannot read."""
        self.needs_newer_release = True

    def note_readable(self) -> None:
        """Note that this release could read the journal."""
        self.needs_newer_release = False

    def succeed(self, *, scanned: bool) -> bool:
        """Note that the response was not an error, and return whether the last problem is over."""
        is_over = self.problem is not None and (scanned or not self._failed_at_checkpoints)
        if is_over:
            self.problem = None
            self._told.clear()
        return is_over

    def silent_since(self, now: float) -> float:
        """Return since when storage has not answered: at most a beat before the open request; now if none is open."""
        return now if self.asked is None else max(self.answered_at, self.asked_at - self.beat_seconds)

    def blind_at(self, now: float) -> float:
        """Return when storage's silence makes this node not ready, if the silence continues."""
        return self.silent_since(now) + self.timeout_seconds

    def busy_until(self, now: float) -> float | None:
        """Return when the loop must turn again although storage takes no request; None if it takes one."""
        if self.asked is not None:
            blind = self.blind_at(now) + _MARGIN_SECONDS
            return blind if blind > now else float("inf")
        return self.blocked_until if now < self.blocked_until else None

    def unready(self, now: float) -> str | None:
        """Return why this node cannot agree with others by storage; None if it can."""
        waited = now - self.silent_since(now)
        if waited > self.timeout_seconds:
            return f"shared storage has not answered for {waited:.0f} s"
        return self.problem
