"""Decide which of several runs on one node may have worker processes now, so that each gets its share. Pure.

A run that wants workers has its turn when it has used the least time so far, divided by its priority. It keeps them
while nobody else waits; otherwise it gives them back between two evaluations, after `turn_seconds` and one piece of
work. A run that comes back from idleness has no claim on the time before: it would keep the others waiting for long.
"""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Claim:
    """Hold what one run has used, and whether it waits."""

    priority: float
    seconds: float = 0.0  # with workers that were used
    used: float = 0.0  # likewise with those of other nodes, divided by the priority; see `FairShares.note`
    evaluated: bool = False  # whether a plan is open, on any node
    wants: bool = False
    waits_since: float = 0.0
    turn_since: float | None = None  # since when it has its turn; None: it has none
    charged_at: float = 0.0
    done: int = 0  # pieces of work, such as evaluations, that it has done so far
    done_before: int = 0  # likewise, when its turn began

    @property
    def waits(self) -> bool:
        """Return whether the run wants workers, and has no turn."""
        return self.wants and self.turn_since is None


@dataclass(slots=True, kw_only=True)
class FairShares:
    """Give turns to `at_once` runs at the same time. Times are arguments.

    A turn lasts for `turn_seconds` although others wait, if the run has work; without work it ends after
    `patience_seconds`. `wake` is called with the name of a run whose turn began, or that may have to end its turn.
    """

    at_once: int
    turn_seconds: float
    patience_seconds: float = float("inf")
    wake: Callable[[str], None] = lambda _: None
    _claims: dict[str, _Claim] = field(default_factory=dict)

    def join(self, run: str, priority: float) -> None:
        """Add a run. One with twice the priority gets twice the time."""
        self._claims[run] = _Claim(priority)

    def leave(self, run: str, now: float) -> None:
        """Remove a run, whose workers have ended."""
        self._claims.pop(run, None)
        self._begin_turns(now)

    def note(self, run: str, now: float, *, wants: bool, done: int, evaluated: bool = False) -> None:
        """Note how a run is, and begin its turn if one is free.

        `wants`: whether it has use for workers now. `done`: pieces of work that it has done so far. `evaluated`:
        whether a plan is open, which counts as use on every node, so that all nodes prefer the same runs.
        """
        claim = self._claims[run]
        self._charge(claim, now)
        claim.done, claim.evaluated = done, evaluated
        if wants and not claim.wants:
            claim.waits_since = now
            if claim.turn_since is None:
                others = [other.used for other in self._claims.values() if other.wants]
                claim.used = max(claim.used, min(others, default=claim.used))
        claim.wants = wants
        if wants and claim.turn_since is None:
            self._begin_turns(now)
            if claim.turn_since is None:
                for name, other in self._claims.items():
                    if other.turn_since is not None and not other.wants:
                        self.wake(name)

    def has_turn(self, run: str) -> bool:
        """Return whether a run may have workers. Any thread may call this, and `seconds`."""
        claim = self._claims.get(run)
        return claim is not None and claim.turn_since is not None

    def seconds(self, run: str) -> float | None:
        """Return the seconds in which a run used workers; None if it did not join."""
        claim = self._claims.get(run)
        return None if claim is None else claim.seconds

    def must_end(self, run: str, now: float) -> bool:
        """Return whether a run must end its turn as soon as no evaluation runs, because another one waits."""
        claim = self._claims[run]
        if claim.turn_since is None:
            return False
        self._charge(claim, now)
        waiting = [other for other in self._claims.values() if other.waits]
        if not claim.wants:
            return bool(waiting)
        has_worked = claim.done > claim.done_before or now >= claim.turn_since + self.patience_seconds
        is_over = has_worked and now >= claim.turn_since + self.turn_seconds
        return is_over and any(other.used < claim.used for other in waiting)

    def heir(self, run: str) -> str | None:
        """Return the run whose turn begins when the turn of this one ends; None if no other one waits."""
        return next((name for name in self._waiting() if name != run), None)

    def end_turn(self, run: str, now: float) -> None:
        """Note that the workers of a run have ended or belong to its heir, and begin the turn of the next run."""
        claim = self._claims[run]
        self._charge(claim, now)
        claim.turn_since, claim.waits_since = None, now
        self._begin_turns(now)

    def _charge(self, claim: _Claim, now: float) -> None:
        """Charge the time since the last call to a run that has its turn and uses it, or that other nodes evaluate."""
        seconds = max(0.0, now - claim.charged_at)
        uses = claim.turn_since is not None and claim.wants
        if uses:
            claim.seconds += seconds
        if uses or claim.evaluated:
            claim.used += seconds / claim.priority
        claim.charged_at = now

    def _begin_turns(self, now: float) -> None:
        """Begin turns as long as some are free and runs wait."""
        free = self.at_once - sum(claim.turn_since is not None for claim in self._claims.values())
        for name in self._waiting()[: max(0, free)]:
            claim = self._claims[name]
            claim.turn_since = claim.charged_at = now
            claim.done_before = claim.done
            self.wake(name)

    def _waiting(self) -> list[str]:
        """Return the runs that wait, in the order in which their turns begin."""
        waiting = [(claim.used, claim.waits_since, name) for name, claim in self._claims.items() if claim.waits]
        return [name for _, _, name in sorted(waiting)]


@dataclass(slots=True)
class RunTurn:
    """Give one run its turn of `FairShares`."""

    shares: FairShares
    run: str

    def note(self, now: float, *, wants: bool, done: int, evaluated: bool) -> None:
        """Note whether the run has use for workers now, what it has done so far, and whether a plan is open."""
        self.shares.note(self.run, now, wants=wants, done=done, evaluated=evaluated)

    def has_begun(self) -> bool:
        """Return whether the run may have workers."""
        return self.shares.has_turn(self.run)

    def must_end(self, now: float) -> bool:
        """Return whether another run waits for its turn, and this one is over."""
        return self.shares.must_end(self.run, now)

    def heir(self) -> str | None:
        """Return the run whose turn begins when this one ends; None if no other run waits."""
        return self.shares.heir(self.run)

    def end(self, now: float) -> None:
        """Note that the workers of the run have ended, or belong to the heir."""
        self.shares.end_turn(self.run, now)
