"""Whether shared storage can be reached, as one daemon's loop sees it.

No I/O and no clock: times come in, in seconds of the loop's own clock.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class StorageHealth:
    """What was asked of storage, since when it is silent, and what it failed at last."""

    answered_at: float
    timeout_seconds: float  # silent for longer, and this node is blind
    beat_seconds: float  # how often it is asked at least; after a failure so long it is not
    asked: object | None = None  # what is not answered yet
    asked_at: float = 0.0
    problem: str | None = None  # why it failed last
    blocked_until: float = float("-inf")
    _in_look: bool = False  # it failed at the checkpoints only: agreement works

    def ask(self, request: object, now: float) -> None:
        """Note what is asked for; there is one request at a time."""
        self.asked, self.asked_at = request, now

    def answer(self, now: float) -> float:
        """Note that the answer came; returns when it was asked for."""
        asked_at = now if self.asked is None else self.asked_at
        self.asked, self.answered_at = None, now
        return asked_at

    def fail(self, message: str, now: float, *, in_look: bool) -> bool:
        """Note that the answer was an error; whether it is another one than before."""
        is_new = message != self.problem
        self.problem, self._in_look = message, in_look
        if not in_look:
            self.blocked_until = now + self.beat_seconds
        return is_new

    def succeed(self, *, looked: bool) -> bool:
        """Note that it was none; whether that mends what failed before."""
        mends = self.problem is not None and (looked or not self._in_look)
        self.problem = None if mends else self.problem
        return mends

    def silent_since(self, now: float) -> float:
        """Since when storage has not said anything, though it is asked: a beat before that at most."""
        return now if self.asked is None else max(self.answered_at, self.asked_at - self.beat_seconds)

    def blind_at(self, now: float) -> float:
        """When its silence makes this node blind, if it goes on."""
        return self.silent_since(now) + self.timeout_seconds

    def unready(self, now: float) -> str | None:
        """Why nothing can be agreed upon."""
        waited = now - self.silent_since(now)
        if waited > self.timeout_seconds:
            return f"shared storage has not answered for {waited:.0f} s"
        return self.problem
