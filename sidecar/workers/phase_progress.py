"""Follow one worker process through its phases: how far it has come, and when it was last heard. Pure."""

from dataclasses import dataclass

from sidecar.states import FailureKind, WorkerPhase
from sidecar.workers.messages import Progress
from sidecar.workers.timeouts import Limit, PhaseTimeouts, limit


@dataclass(slots=True)
class PhaseProgress:
    """Hold how far one worker process has come in its phase. Times are seconds of the daemon's clock."""

    since: float  # when the worker entered the phase
    heard: float  # the worker's last sign of life
    phase: WorkerPhase = WorkerPhase.IMPORT
    batches: int = 0  # done in this phase
    total_batches: int | None = None
    slowest: float = 0.0  # longest time between two signs of life while the worker worked on batches
    halted: float | None = None  # since when the process is stopped by a signal

    def enter(self, phase: WorkerPhase, now: float) -> None:
        """Note that the worker entered a phase."""
        self.phase, self.since, self.heard, self.batches = phase, now, now, 0

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
        """Return how the worker fails if it has passed the time limit of its phase, and a message; else None."""
        bound = limit(timeouts, self.phase, batches=self.batches, slowest=self.slowest)
        seconds = now - self.heard
        if self.halted is not None:
            doing = "was stopped by a signal (SIGSTOP?)"
            bound = Limit(timeouts.suspended_timeout_seconds, FailureKind.STALLED, doing)
            seconds = now - self.halted
        if bound is None or seconds <= bound.seconds:
            return None
        return bound.kind, f"{bound.doing} for {seconds:.0f} s, more than the {bound.seconds:.0f} s allowed"
