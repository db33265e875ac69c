"""Measure how long a plan took on this node, from the discovery of its checkpoint to its result. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class PlanTimes:
    """Hold the times at which this node's part of a plan reached each point, in seconds of the daemon's clock.

    Args:
        agree_seconds: Seconds from this node's proposal to the plan being read back; None if another node proposed it.
        joining_since: When the last worker of this node was commanded to join; None if the workers are warm.
        joined_at: When the last worker of this node reported that it had joined.
        done_at: When the first worker of this node reported a result.
    """

    agree_seconds: float | None = None
    joining_since: float | None = None
    joined_at: float | None = None
    done_at: float | None = None

    def durations(self, phases: Mapping[str, float], detect_seconds: float | None, now: float) -> dict[str, float]:
        """Return the seconds of each phase from the checkpoint's last write until `now`, when the result is written.

        `phases`: seconds by phase, as the workers measured them, the slowest rank's where ranks differ.
        `detect_seconds`: from the last write of the checkpoint to its discovery; None if that was not watched.
        """
        daemon = {"detect": detect_seconds, "agree": self.agree_seconds}
        known = {name: seconds for name, seconds in daemon.items() if seconds is not None}
        join = 0.0
        if self.joined_at is not None and self.joining_since is not None:
            join = self.joined_at - self.joining_since
        publish = now - self.done_at if self.done_at is not None else 0.0
        measured = {**known, "join": join, **phases, "publish": publish}
        return {name: round(seconds, 6) for name, seconds in measured.items()}
