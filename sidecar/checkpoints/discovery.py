"""The order in which a node found checkpoints, which is the order in which it wants them evaluated.

Within one look it is that of steps. What a node meets as another's pin only, since training deleted it before, was
there before what was written later.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from sidecar.checkpoints.found import Found
from sidecar.records import Key


class Discovery:
    """Never forgets: what flickers must not look new again. Sorting keys by `order` sorts them by discovery."""

    def __init__(self) -> None:
        self.order: dict[Key, tuple[float, float]] = {}  # place and time
        self._next = 0.0

    def add(self, new: Iterable[Found], found: Mapping[Key, Found], lying: Container[Key], now: float) -> bool:
        """Give each of these a place; those that are known keep theirs. Returns whether all of them come last.

        `found`: by the looks before; `lying`: what training has not deleted.
        """
        are_last = True
        for each in sorted(new, key=_by_step_and_name):
            key = each.checkpoint.key
            if key in self.order:
                are_last = False
            elif key not in lying and (later := self._written_after(each, found)):
                self._insert(key, min(later, key=self.order.__getitem__))
                are_last = False
            else:
                self.order[key] = self._next, now
                self._next += 1.0
        return are_last

    def _insert(self, key: Key, after_it: Key) -> None:
        place, seen_at = self.order[after_it]
        before = max((known for known, _ in self.order.values() if known < place), default=place - 1.0)
        if before < (between := (before + place) / 2) < place:
            self.order[key] = between, seen_at
            return
        # No number is left between them. Looks are read in another thread, so the order that they know stays as it is.
        known = sorted(self.order, key=self.order.__getitem__)
        self.order = {each: (float(number), self.order[each][1]) for number, each in enumerate(known)}
        self._next = float(len(known))
        self._insert(key, after_it)

    def _written_after(self, this: Found, found: Mapping[Key, Found]) -> Sequence[Key]:
        return [key for key, each in found.items() if each.written_at > this.written_at]


def _by_step_and_name(found: Found) -> tuple[bool, int, list[str | int], float]:
    """Of two contents under one name, as a pin may hold the former one, the newer comes last."""
    step = found.checkpoint.step
    return step is None, step or 0, list(_natural(found.checkpoint.name)), found.written_at


def _natural(name: str) -> Iterator[str | int]:
    """`ckpt-10` after `ckpt-9`: text and numbers alternate, so two names compare without a type error."""
    for index, part in enumerate(re.split(r"([0-9]+)", name)):
        yield int(part) if index % 2 else part
