"""Let a run have worker processes in its turn only, where one process serves several runs on a node.

`policy.fair_shares` decides whose turn it is. The workers leave the run only when no plan can list them any more: those
that the next run would start in the same way are handed over to it, warm, and all others are killed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sidecar.daemon.worker_supervisor import WorkerSupervisor


class Turn(Protocol):
    """Say when this run may have worker processes."""

    def note(self, now: float, *, wants: bool, done: int, evaluated: bool) -> None:
        """Note whether the run has use for workers now, what it has done so far, and whether a plan is open."""

    def has_begun(self) -> bool:
        """Return whether the run may have workers."""

    def must_end(self, now: float) -> bool:
        """Return whether another run waits for its turn, and this one is over."""

    def heir(self) -> str | None:
        """Return the run whose turn begins when this one ends; None if no other run waits."""

    def end(self, now: float) -> None:
        """Note that the workers of the run have ended, or belong to the heir."""


@dataclass(slots=True, kw_only=True)
class WorkerTurn:
    """Follow the turn of one run, and end its workers with it."""

    turn: Turn
    supervisor: WorkerSupervisor
    supervisor_of: Callable[[str], WorkerSupervisor | None]  # of another run in this process
    _ends_since: float | None = None  # since when the turn is to end, and plans must not list the workers any more
    _fills: bool = False  # whether missing standbys are started although the turn ends, for the heir

    def take(
        self,
        now: float,
        *,
        wants: bool,
        done: int,
        evaluated: bool,
        unlisted_since: float | None,
        may_fill: bool = True,
    ) -> None:
        """Note whether this run has use for workers, and end its turn if another run waits.

        `done`: pieces of work that were done so far. `evaluated`: whether a plan of the run is open, on any node.
        `unlisted_since`: the time since which the workers must not be offered, so that no plan lists them now; None: a
        plan may list them. `may_fill`: the daemon starts missing standbys, so that all can be handed over.
        """
        workers = self.supervisor.workers
        self.turn.note(now, wants=wants, done=done, evaluated=evaluated)
        is_checking = self.supervisor.task is None and any(workers.all())
        if is_checking or not self.turn.must_end(now):  # a check is bounded, and begins anew if it is broken off
            workers.offered, self._ends_since, self._fills = True, None, False
            return
        workers.offered = False
        if self._ends_since is None:
            self._ends_since = now
        if unlisted_since is None or self._ends_since > unlisted_since:
            return
        heir = self._heir(now) if may_fill else None
        self._fills = heir is not None
        if workers.retire(keep_warm=heir is not None):
            if heir is not None:
                workers.hand_over(heir.workers)
                if pids := {worker.worker: worker.process.pid for worker in heir.workers.all()}:
                    heir.log.info("workers_taken_over", workers=pids)
            workers.offered, self._ends_since, self._fills = True, None, False
            self.turn.end(now)

    def _heir(self, now: float) -> WorkerSupervisor | None:
        """Return the supervisor of the next run if it would start the same workers, for the same code of the task."""
        run, own = self.turn.heir(), self.supervisor
        heir = None if run is None or now < own.fill_at else self.supervisor_of(run)
        is_like = heir is not None and heir.task == own.task and heir.evaluates_like(own)
        return heir if is_like else None

    def may_start(self) -> bool:
        """Return whether processes may be started: it is the turn of this run, or its heir needs a standby."""
        return self.turn.has_begun() and (self._ends_since is None or self._fills)
