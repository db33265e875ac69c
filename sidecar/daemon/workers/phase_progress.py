"""Follow one worker process through its phases: how far it has come, and when it was last heard. Pure."""

from dataclasses import dataclass, field

from sidecar.daemon.workers.processor_waits import WaitMeter
from sidecar.daemon.workers.timeouts import MOST_WAITING, PhaseTimeouts, halted_limit, limit
from sidecar.protocol.messages import Progress
from sidecar.protocol.states import FailureKind, WorkerPhase


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
        bound = limit(timeouts, self.phase, batches=self.batches, slowest=self.slowest)
        silent, waited = now - self.heard, self.waits.seconds
        if self.halted is not None:
            bound = halted_limit(timeouts)
            silent, waited = now - self.halted, 0.0
        if bound is None or (silent - waited <= bound.seconds and silent <= MOST_WAITING * bound.seconds):
            return None
        return bound.kind, bound.message(silent, waited)
