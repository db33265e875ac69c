"""How long each part of a worker's work may take. Pure."""

from dataclasses import dataclass

from sidecar.states import FailureKind, PhaseBound, WorkerPhase


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """The seconds since its last sign of life after which a worker has failed, and what to say then."""

    seconds: float
    kind: FailureKind
    doing: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A worker stayed in a phase for longer than the bound of that phase."""

    worker: str
    kind: FailureKind
    message: str
    phase: WorkerPhase | None = None  # the phase it was in


def limit(timeouts: PhaseTimeouts, phase: WorkerPhase, *, batches: int, slowest: float) -> Limit | None:
    """Return the limit in a phase; None if nobody bounds it, or if daemons judge the whole group.

    `batches` were done in the phase, and `slowest` is the longest time in seconds that one of them took.
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
