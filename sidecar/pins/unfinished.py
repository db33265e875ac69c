"""Find unfinished pins that no node works on any more: their makers died, or could not remove them.

This node's own clock counts; the storage's times are compared with each other only. No I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.pins.names import is_of
from sidecar.pins.pin import TOUCH_SECONDS
from sidecar.pins.usage import Progress

_OWN_SECONDS: Final = 4 * TOUCH_SECONDS  # only this node makes them, and it touches what it makes
_OTHERS_SECONDS: Final = 600.0  # far more than a maker that lives, on a machine that is slow, leaves between touches
_TURNS: Final = 10


@dataclass(slots=True)
class _Unfinished:
    """An unfinished pin as it was in the last scan; times are seconds of this node's clock."""

    progress: Progress
    began_at: float
    grew_at: float
    changed_at: float


@dataclass(slots=True)
class UnfinishedPins:
    """Remember how unfinished pins grew. `owner`: the name of this node."""

    owner: str
    _seen: dict[str, _Unfinished] = field(default_factory=dict)

    def observe(self, making: Mapping[str, Progress], now: float) -> None:
        """Note how far they are now."""
        self._seen = {name: self._follow(name, progress, now) for name, progress in making.items()}

    def idle(self, now: float, turn_seconds: float) -> frozenset[str]:
        """Return those that do not grow: no room is kept for them.

        A copy that is whole is made durable and checked, which takes no longer than copying it took.
        """
        return frozenset(
            name for name, pin in self._seen.items() if now >= pin.grew_at + turn_seconds + pin.grew_at - pin.began_at
        )

    def abandoned(self, now: float, turn_seconds: float) -> list[str]:
        """Return those that nobody has even touched for long: they may be removed."""
        return [name for name, pin in self._seen.items() if now >= pin.changed_at + self._bound(name, turn_seconds)]

    def _bound(self, name: str, turn_seconds: float) -> float:
        return _OWN_SECONDS if is_of(name, self.owner) else max(_OTHERS_SECONDS, _TURNS * turn_seconds)

    def _follow(self, name: str, progress: Progress, now: float) -> _Unfinished:
        before = self._seen.get(name)
        if before is None:
            return _Unfinished(progress, now, now, now)
        grew_at = now if progress.size > before.progress.size else before.grew_at
        changed_at = now if progress != before.progress else before.changed_at
        return _Unfinished(progress, before.began_at, grew_at, changed_at)
