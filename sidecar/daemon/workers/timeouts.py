"""Decide how long each phase of a worker's work may take. Pure."""

import math
from dataclasses import dataclass
from typing import Final

from sidecar.protocol.states import FailureKind, PhaseBound, WorkerPhase

MOST_WAITING: Final = 10
"""A worker has failed after this many times its limit even if it waited for a processor nearly all of the time."""

_WAITED_SECONDS: Final = 1.0  # that are worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimeouts:
    """Hold the time that each phase of a worker may take."""

    join_timeout_seconds: float
    restore_timeout_seconds: float
    first_batch_timeout_seconds: float
    stall_seconds: float
    stall_factor: float  # the limit for a batch is at least this many times the slowest batch
    suspended_timeout_seconds: float  # for a process that is stopped by a signal, in any phase


@dataclass(frozen=True, slots=True)
class Limit:
    """Hold the seconds without a sign of life after which a worker has failed, and the parts of the message then."""

    seconds: float
    kind: FailureKind
    doing: str
    setting: str

    def message(self, silent: float, waited: float) -> str:
        """Return the message about a worker that was silent, and of this time waited for a processor."""
        counted = "" if waited < _WAITED_SECONDS else f" ({waited:.0f} s of them waiting for a processor)"
        return (
            f"{self.doing} for {silent:.0f} s{counted}, more than the {self.seconds:.0f} s allowed; if that is normal "
            f"here, set {self.setting} = {math.ceil(2 * self.seconds)}"
        )


@dataclass(frozen=True, slots=True)
class TimedOut:
    """Report that a worker exceeded the time limit of its phase."""

    worker: str
    kind: FailureKind
    message: str
    phase: WorkerPhase | None = None  # the phase it was in


def limit(timeouts: PhaseTimeouts, phase: WorkerPhase, *, batches: int, slowest: float) -> Limit | None:
    """Return the limit in a phase; None if the phase has no limit, or if the daemons judge the whole group.

    `batches`: the number of batches done in the phase. `slowest`: the longest time in seconds that one of them took.
    """
    match phase.bounded_by:
        case PhaseBound.JOIN:
            doing = "importing" if phase is WorkerPhase.IMPORT else "forming the group"
            return Limit(timeouts.join_timeout_seconds, FailureKind.JOIN, f"was {doing}", "join_timeout_seconds")
        case PhaseBound.STORAGE:
            seconds, doing = timeouts.restore_timeout_seconds, f"was in {phase}"
            return Limit(seconds, FailureKind.DEADLINE, doing, "restore_timeout_seconds")
        case PhaseBound.FIRST_BATCH if phase is WorkerPhase.CONCLUDE:
            doing = "was computing results from the sums"
            return _first_batch(timeouts, doing)
        case PhaseBound.BATCHES if batches > 0:
            seconds = max(timeouts.stall_seconds, timeouts.stall_factor * slowest)
            return Limit(seconds, FailureKind.STALLED, f"made no progress in {phase}", "stall_seconds")
        case PhaseBound.FIRST_BATCH | PhaseBound.BATCHES:
            doing = f"has not finished its first batch ({phase})"
            return _first_batch(timeouts, doing)
    return None


def halted_limit(timeouts: PhaseTimeouts) -> Limit:
    """Return the limit for a process that a signal has stopped, in any phase."""
    doing, seconds = "was stopped by a signal (SIGSTOP?)", timeouts.suspended_timeout_seconds
    return Limit(seconds, FailureKind.STALLED, doing, "suspended_timeout_seconds")


def _first_batch(timeouts: PhaseTimeouts, doing: str) -> Limit:
    seconds = timeouts.first_batch_timeout_seconds
    return Limit(seconds, FailureKind.DEADLINE, doing, "first_batch_timeout_seconds")
