"""What is kept of what workers saved: metric states for ever, weights of the newest evaluations only. Pure."""

from dataclasses import dataclass, field
from typing import Final

from sidecar.records import Plan

_LOOKED_BACK: Final = 20  # successes before the kept ones whose weights a restarted daemon removes, if they are there
_GRACE_SECONDS: Final = 60.0  # by then every daemon has read of the failure, and its killed workers write no more


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
    _failed: dict[str, float] = field(default_factory=dict)  # folder: when its plan failed
    _measured: tuple[str, ...] = ()

    def succeeded(self, plan: Plan) -> None:
        """Its saves are the newest now."""
        self._succeeded.append(plan_folder(plan))
        del self._succeeded[: -(self.keep + _LOOKED_BACK)]

    def failed(self, plan: Plan, now: float) -> None:
        """Nobody will ask for its saves."""
        self._failed[plan_folder(plan)] = now

    def due(self, now: float) -> Tidying:
        """What to do now; said again until it is `done`, since storage may fail."""
        drop = tuple(folder for folder, since in self._failed.items() if now >= since + _GRACE_SECONDS)
        old, kept = tuple(self._succeeded[: -self.keep]), tuple(self._succeeded[-self.keep :])
        return Tidying(drop, old, kept if kept != self._measured else ())

    def done(self, tidying: Tidying) -> None:
        """It was carried out."""
        for folder in tidying.drop:
            self._failed.pop(folder, None)
        self._succeeded = [folder for folder in self._succeeded if folder not in tidying.drop_weights]
        self._measured = tidying.measure or self._measured


def plan_folder(plan: Plan) -> str:
    """Where the ranks of a plan save, relative to the run's state directory."""
    assert plan.checkpoint is not None
    return f"evaluations/{plan.checkpoint.folder}/plan-{plan.plan}"
