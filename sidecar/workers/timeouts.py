"""How long each part of a worker's work may take. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PhaseTimeouts:
    """Hold the time that each phase of a worker may take."""

    join_timeout_seconds: float
    restore_timeout_seconds: float
    first_batch_timeout_seconds: float
    stall_seconds: float
    stall_factor: float  # a stall is also this many times the slowest batch
    suspended_timeout_seconds: float  # stopped by a signal, in any phase


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound of what a worker does now, counted from its last sign of life, and what to say when it is passed."""

    seconds: float
    kind: str
    doing: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A worker passed a bound."""

    worker: str
    kind: str
    message: str
    phase: str | None = None  # what it was in


def limit(bounds: PhaseTimeouts, phase: str, *, batches: int, slowest: float) -> Limit | None:
    """The bound in a phase, given the batches done in it and the seconds that the slowest so far took.

    None in hello, reduce and sum, where a rank waits for others whose own daemons judge them, and where it is idle.
    """
    if phase in ("import", "join"):
        what = "importing" if phase == "import" else "forming the group"
        return Limit(bounds.join_timeout_seconds, "join", f"was {what}")
    if phase in ("restore", "save"):
        return Limit(bounds.restore_timeout_seconds, "deadline", f"was in {phase}")
    if phase == "conclude":
        return Limit(bounds.first_batch_timeout_seconds, "deadline", "was computing results from the sums")
    if phase == "build" or (phase in ("read", "evaluate") and batches == 0):
        return Limit(bounds.first_batch_timeout_seconds, "deadline", f"has not finished its first batch ({phase})")
    if phase in ("read", "evaluate"):
        seconds = max(bounds.stall_seconds, bounds.stall_factor * slowest)
        return Limit(seconds, "stalled", f"made no progress in {phase}")
    return None
