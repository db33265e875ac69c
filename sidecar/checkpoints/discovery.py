"""The order in which a node found checkpoints, which is the order in which it wants them evaluated.

Within one look it is that of steps. What a node meets as another's pin only, since training deleted it before, was
there before what was written later.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping

from sidecar.checkpoints.found import Found
from sidecar.records import Key


class Discovery:
    """Never forgets: what flickers must not look new again. Sorting keys by `order` sorts them by discovery."""

    def __init__(self) -> None:
        self.order: dict[Key, tuple[float, float]] = {}  # place and time
        self._next = 0.0

    def add(self, new: Iterable[Found], found: Mapping[Key, Found], lying: Container[Key], now: float) -> None:
        """Give each of these a place; those that are known keep theirs.

        `found`: by the looks before; `lying`: what training has not deleted.
        """
        for each in sorted(new, key=_by_step_and_name):
            if each.checkpoint.key in self.order:
                continue
            later = [self.order[key] for key, other in found.items() if other.written_at > each.written_at]
            if each.checkpoint.key in lying or not later:
                self.order[each.checkpoint.key] = self._next, now
                self._next += 1.0
            else:
                place, seen_at = min(later)
                before = max((known for known, _ in self.order.values() if known < place), default=place - 1.0)
                self.order[each.checkpoint.key] = (before + place) / 2, seen_at


def _by_step_and_name(found: Found) -> tuple[bool, int, list[str | int], float]:
    """Of two contents under one name, as a pin may hold the former one, the newer comes last."""
    step = found.checkpoint.step
    return step is None, step or 0, list(_natural(found.checkpoint.name)), found.written_at


def _natural(name: str) -> Iterator[str | int]:
    """`ckpt-10` after `ckpt-9`: text and numbers alternate, so two names compare without a type error."""
    for index, part in enumerate(re.split(r"([0-9]+)", name)):
        yield int(part) if index % 2 else part
