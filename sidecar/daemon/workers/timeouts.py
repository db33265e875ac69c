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
_MOSTLY: Final = 0.5  # of the time
_NO_MACHINE: Final = (
    "has no machine of the cluster after {:.0f} s: none has ray_labels, and has ray_resources free. `ray status` lists "
    "what is in use; a daemon waits for a machine for as long as it takes"
)
_RESTING: Final = frozenset({WorkerPhase.PLACE, WorkerPhase.STANDBY, WorkerPhase.IDLE, WorkerPhase.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimeouts:
    """Hold the time that each phase of a worker may take."""

    join_timeout_seconds: float
    restore_timeout_seconds: float
    first_batch_timeout_seconds: float
    stall_seconds: float
    stall_factor: float  # the limit for a batch is at least this many times the slowest batch
    suspended_timeout_seconds: float  # for a process that is stopped by a signal, in any phase
    yield_seconds: float  # waiting for processors after which a worker does not give way any more
    place_seconds: float = math.inf  # until a cluster has a machine for it


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
    waits: WaitMeter = field(default_factory=WaitMeter)
    _waited_unheard: float = 0.0  # the reading of `waits` at the last sign of life
    _waited_before: float = 0.0  # the reading of `waits` when the present work began

    @property
    def waited(self) -> float:
        """Return the seconds for which the worker has waited for a processor since its work began."""
        return self.waits.seconds - self._waited_before

    @property
    def rests(self) -> bool:
        """Return whether the worker has nothing to compute."""
        return self.phase in _RESTING

    @property
    def is_waiting(self) -> bool:
        """Return whether the worker now waits for a processor for most of the time."""
        return not self.rests and self.waits.share >= _MOSTLY

    def begin(self, phase: WorkerPhase, now: float) -> None:
        """Note that the worker began with a piece of work: to join a group, or to evaluate."""
        self._waited_before = self.waits.seconds
        self.enter(phase, now)

    def enter(self, phase: WorkerPhase, now: float) -> None:
        """Note that the worker entered a phase."""
        self.phase, self.since, self.batches = phase, now, 0
        self.hear(now)

    def hear(self, now: float) -> None:
        """Note a sign of life."""
        self.heard, self._waited_unheard = now, self.waits.seconds

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

        The time in which it waited for a processor does not count, up to a multiple of the limit and `yield_seconds`.
        """
        if self.phase is WorkerPhase.PLACE and now - self.since > timeouts.place_seconds:
            return FailureKind.JOIN, _NO_MACHINE.format(now - self.since)
        bound = _limit(timeouts, self.phase, batches=self.batches, slowest=self.slowest)
        silent, waited = now - self.heard, self.waits.seconds - self._waited_unheard
        if self.halted is not None:
            bound = _halted_limit(timeouts)
            silent, waited = now - self.halted, 0.0
        if bound is None or (
            silent - waited <= bound.seconds
            and silent <= _MOST_WAITING * bound.seconds + (timeouts.yield_seconds if self.halted is None else 0.0)
        ):
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
