"""What is kept of what workers saved: metric states for ever, weights of the newest evaluations only. Pure."""

from dataclasses import dataclass, field
from typing import Final

from sidecar.records import Plan

_LOOKED_BACK: Final = 20  # successes before the kept ones whose weights a restarted daemon removes, if they are there


@dataclass(frozen=True, slots=True)
class Tidying:
    """Folders, relative to the run's state directory."""

    drop: tuple[str, ...] = ()  # remove altogether: what failed plans left
    drop_weights: tuple[str, ...] = ()  # keep metric states, remove weights
    measure: tuple[str, ...] = ()  # kept with their weights: how much disk do they use


@dataclass(slots=True)
class Retention:
    """Follows the journal and says what may go."""

    keep: int
    _succeeded: list[str] = field(default_factory=list)
    _failed: list[str] = field(default_factory=list)
    _changed: bool = False

    def succeeded(self, plan: Plan) -> None:
        """Its saves are the newest now."""
        self._succeeded.append(plan_folder(plan))
        del self._succeeded[: -(self.keep + _LOOKED_BACK)]
        self._changed = True

    def failed(self, plan: Plan) -> None:
        """Nobody will ask for its saves."""
        self._failed.append(plan_folder(plan))

    def due(self) -> Tidying:
        """What to do now; it is not said again."""
        drop, self._failed = tuple(self._failed), []
        if not self._changed:
            return Tidying(drop)
        self._changed = False
        old, self._succeeded = self._succeeded[: -self.keep], self._succeeded[-self.keep :]
        return Tidying(drop, tuple(old), tuple(self._succeeded))


def plan_folder(plan: Plan) -> str:
    """Where the ranks of a plan save, relative to the run's state directory."""
    assert plan.checkpoint is not None
    return f"evaluations/{plan.checkpoint.folder}/plan-{plan.plan}"
