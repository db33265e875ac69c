"""Decide how long each phase of a worker's work may take. Pure."""

from dataclasses import dataclass

from sidecar.states import FailureKind, PhaseBound, WorkerPhase


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
            return Limit(timeouts.join_timeout_seconds, FailureKind.JOIN, f"was {doing}")
        case PhaseBound.STORAGE:
            return Limit(timeouts.restore_timeout_seconds, FailureKind.DEADLINE, f"was in {phase}")
        case PhaseBound.FIRST_BATCH if phase is WorkerPhase.CONCLUDE:
            doing = "was computing results from the sums"
            return Limit(timeouts.first_batch_timeout_seconds, FailureKind.DEADLINE, doing)
        case PhaseBound.BATCHES if batches > 0:
            seconds = max(timeouts.stall_seconds, timeouts.stall_factor * slowest)
            return Limit(seconds, FailureKind.STALLED, f"made no progress in {phase}")
        case PhaseBound.FIRST_BATCH | PhaseBound.BATCHES:
            doing = f"has not finished its first batch ({phase})"
            return Limit(timeouts.first_batch_timeout_seconds, FailureKind.DEADLINE, doing)
    return None
