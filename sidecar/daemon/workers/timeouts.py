"""Follow a worker through the phases of its work, and decide whether it has passed the time limit of one. Pure."""

import math
from dataclasses import dataclass, field
from typing import Final

from sidecar.daemon.workers.processor_waits import WaitMeter
from sidecar.protocol.messages import Progress
from sidecar.protocol.states import FailureKind, PhaseBound, WorkerPhase

_MOST_WAITING: Final = 10
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
class _Limit:
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


@dataclass(slots=True, kw_only=True)
class PhaseProgress:
    """Hold how far one worker process has come in its phase. Times are seconds of the daemon's clock."""

    since: float  # when the worker entered the phase
    heard: float  # the worker's last sign of life
    phase: WorkerPhase = WorkerPhase.IMPORT
    batches: int = 0  # done in this phase
    total_batches: int | None = None
    slowest: float = 0.0  # longest time between two signs of life while the worker worked on batches
    halted: float | None = None  # since when the process is stopped by a signal
    waits: WaitMeter = field(default_factory=WaitMeter)  # since the last sign of life

    def enter(self, phase: WorkerPhase, now: float) -> None:
        """Note that the worker entered a phase."""
        self.phase, self.since, self.batches = phase, now, 0
        self.hear(now)

    def hear(self, now: float) -> None:
        """Note a sign of life."""
        self.heard = now
        self.waits.start()

    def advance(self, progress: Progress, now: float) -> None:
        """Note that the worker did batches since its last report."""
        if progress.batches > 1:  # the first one may have traced and compiled
            self.slowest = max(self.slowest, now - self.heard)
        self.batches, self.total_batches = progress.batches, progress.total

    def forgive(self, seconds: float) -> None:
        """Ignore a silence of this length, because the daemon could not hear the worker meanwhile."""
        self.heard += seconds
        self.halted = None if self.halted is None else self.halted + seconds

    def overrun(self, timeouts: PhaseTimeouts, now: float) -> tuple[FailureKind, str] | None:
        """Return how the worker fails if it has passed the time limit of its phase, and a message; else None.

        The time in which it waited for a processor does not count, up to a multiple of the limit.
        """
        bound = _limit(timeouts, self.phase, batches=self.batches, slowest=self.slowest)
        silent, waited = now - self.heard, self.waits.seconds
        if self.halted is not None:
            bound = _halted_limit(timeouts)
            silent, waited = now - self.halted, 0.0
        if bound is None or (silent - waited <= bound.seconds and silent <= _MOST_WAITING * bound.seconds):
            return None
        return bound.kind, bound.message(silent, waited)


def _limit(timeouts: PhaseTimeouts, phase: WorkerPhase, *, batches: int, slowest: float) -> _Limit | None:
    """Return the limit in a phase; None if the phase has no limit, or if the daemons judge the whole group.

    `batches`: the number of batches done in the phase. `slowest`: the longest time in seconds that one of them took.
    """
    match phase.bounded_by:
        case PhaseBound.JOIN:
            doing = "importing" if phase is WorkerPhase.IMPORT else "forming the group"
            return _Limit(timeouts.join_timeout_seconds, FailureKind.JOIN, f"was {doing}", "join_timeout_seconds")
        case PhaseBound.STORAGE:
            seconds, doing = timeouts.restore_timeout_seconds, f"was in {phase}"
            return _Limit(seconds, FailureKind.DEADLINE, doing, "restore_timeout_seconds")
        case PhaseBound.FIRST_BATCH if phase is WorkerPhase.CONCLUDE:
            doing = "was computing results from the sums"
            return _first_batch(timeouts, doing)
        case PhaseBound.BATCHES if batches > 0:
            seconds = max(timeouts.stall_seconds, timeouts.stall_factor * slowest)
            return _Limit(seconds, FailureKind.STALLED, f"made no progress in {phase}", "stall_seconds")
        case PhaseBound.FIRST_BATCH | PhaseBound.BATCHES:
            doing = f"has not finished its first batch ({phase})"
            return _first_batch(timeouts, doing)
    return None


def _halted_limit(timeouts: PhaseTimeouts) -> _Limit:
    """Return the limit for a process that a signal has stopped, in any phase."""
    doing, seconds = "was stopped by a signal (SIGSTOP?)", timeouts.suspended_timeout_seconds
    return _Limit(seconds, FailureKind.STALLED, doing, "suspended_timeout_seconds")


def _first_batch(timeouts: PhaseTimeouts, doing: str) -> _Limit:
    seconds = timeouts.first_batch_timeout_seconds
    return _Limit(seconds, FailureKind.DEADLINE, doing, "first_batch_timeout_seconds")
