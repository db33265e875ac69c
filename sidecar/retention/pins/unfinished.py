"""Find unfinished pins that no node works on any more, because their makers died or could not remove them.

Times are those of this node's own clock. The storage's times are compared with each other only. No I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.retention.pins.names import is_owned_by
from sidecar.retention.pins.pin import TOUCH_SECONDS
from sidecar.retention.pins.usage import Progress

_OWN_SECONDS: Final = 4 * TOUCH_SECONDS  # for pins of this node, which touches them while it makes them
_OTHERS_SECONDS: Final = 600.0  # far more than the time between two touches by a live maker on a slow machine
_TURNS: Final = 10


@dataclass(slots=True)
class _Unfinished:
    """Hold the state of an unfinished pin in the last scan. Times are seconds of this node's clock."""

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
        """Note the present state of all unfinished pins."""
        self._seen = {name: self._follow(name, progress, now) for name, progress in making.items()}

    def idle(self, now: float, turn_seconds: float) -> frozenset[str]:
        """Return the names of unfinished pins that no longer grow, so that no room is reserved for them.

        A whole copy does not grow while it is made durable and checked, which takes no longer than copying it.
        """
        return frozenset(
            name for name, pin in self._seen.items() if now >= pin.grew_at + turn_seconds + pin.grew_at - pin.began_at
        )

    def abandoned(self, now: float, turn_seconds: float) -> list[str]:
        """Return the names of unfinished pins that nobody has touched for long, and that may be removed."""
        return [name for name, pin in self._seen.items() if now >= pin.changed_at + self._bound(name, turn_seconds)]

    def _bound(self, name: str, turn_seconds: float) -> float:
        """Return the seconds without a change after which an unfinished pin is abandoned."""
        return _OWN_SECONDS if is_owned_by(name, self.owner) else max(_OTHERS_SECONDS, _TURNS * turn_seconds)

    def _follow(self, name: str, progress: Progress, now: float) -> _Unfinished:
        """Return the new state of an unfinished pin, by its state in the last scan."""
        before = self._seen.get(name)
        if before is None:
            return _Unfinished(progress, now, now, now)
        grew_at = now if progress.size > before.progress.size else before.grew_at
        changed_at = now if progress != before.progress else before.changed_at
        return _Unfinished(progress, before.began_at, grew_at, changed_at)
