"""Let a run have worker processes in its turn only, where one process serves several runs on a node.

`policy.fair_shares` decides whose turn it is. The workers are killed only when no plan can list them any more.
"""

from dataclasses import dataclass
from typing import Protocol

from sidecar.daemon.workers.pool import WorkerPool


class Turn(Protocol):
    """Say when this run may have worker processes."""

    def note(self, now: float, *, wants: bool, done: int, evaluated: bool) -> None:
        """Note whether the run has use for workers now, what it has done so far, and whether a plan is open."""

    def has_begun(self) -> bool:
        """Return whether the run may have workers."""

    def must_end(self, now: float) -> bool:
        """Return whether another run waits for its turn, and this one is over."""

    def end(self, now: float) -> None:
        """Note that the workers of the run have ended."""


@dataclass(slots=True, kw_only=True)
class WorkerTurn:
    """Follow the turn of one run, and end its workers with it."""

    turn: Turn
    workers: WorkerPool
    _ends_since: float | None = None  # since when the turn is to end, and plans must not list the workers any more

    def take(self, now: float, *, wants: bool, done: int, evaluated: bool, unlisted_since: float | None) -> None:
        """Note whether this run has use for workers, and end its turn if another run waits.

        `done`: pieces of work that were done so far. `evaluated`: whether a plan of the run is open, on any node.
        `unlisted_since`: the time since which the workers must not be offered, so that no plan lists them now; None: a
        plan may list them.
        """
        self.turn.note(now, wants=wants, done=done, evaluated=evaluated)
        if not self.turn.must_end(now):
            self.workers.offered, self._ends_since = True, None
            return
        self.workers.offered = False
        if self._ends_since is None:
            self._ends_since = now
        if unlisted_since is None or self._ends_since > unlisted_since:
            return
        self.workers.kill_all()
        if not any(self.workers.all()):
            self.workers.offered, self._ends_since = True, None
            self.turn.end(now)

    def may_start(self) -> bool:
        """Return whether processes may be started: it is the turn of this run, and the turn does not end."""
        return self.turn.has_begun() and self._ends_since is None
