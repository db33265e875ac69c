"""The order in which a node found checkpoints, which is the order in which it wants them evaluated.

Within one look it is that of steps, if all of them are known and were found in the same way; else it is that of the
times at which they were written, since steps of two kinds say nothing of one another. What a node meets as another's
pin only, since training deleted it before, was there before what was written later. So was what lies there and is older
by its step, too: it could not be read until now. After a rollback, training writes later.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.records import Checkpoint, Key


class DiscoveryOrder:
    """Never forgets: what flickers must not look new again. Sorting keys by `order` sorts them by discovery."""

    def __init__(self) -> None:
        self.order: dict[Key, tuple[float, float]] = {}  # place and time
        self._next = 0.0

    def add(
        self,
        new: Iterable[DiscoveredCheckpoint],
        found: Mapping[Key, DiscoveredCheckpoint],
        lying: Container[Key],
        now: float,
    ) -> bool:
        """Give each of these a place; those that are known keep theirs. Returns whether all of them come last.

        `found`: by the looks before; `lying`: what training has not deleted.
        """
        are_last, newest = True, max((each.written_at for each in found.values()), default=0.0) if new else 0.0
        for each in _in_order(new):
            key = each.checkpoint.key
            if key in self.order:
                are_last = False
            elif each.written_at < newest and (later := _later(each, found, is_lying=key in lying)):
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


def _later(this: DiscoveredCheckpoint, found: Mapping[Key, DiscoveredCheckpoint], *, is_lying: bool) -> Sequence[Key]:
    """Those of the found that were surely there later than this one."""
    later = {key: each for key, each in found.items() if each.written_at > this.written_at}
    return [key for key, each in later.items() if not is_lying or _is_of_lower_step(this.checkpoint, each.checkpoint)]


def _is_of_lower_step(this: Checkpoint, other: Checkpoint) -> bool:
    if this.step is None or other.step is None:
        return False
    return this.step_source == other.step_source and this.step < other.step


def _in_order(new: Iterable[DiscoveredCheckpoint]) -> list[DiscoveredCheckpoint]:
    """Of two contents under one name, as a pin may hold the former one, the newer comes last."""
    some = list(new)
    names = {id(each): natural(each.checkpoint.name) for each in some}
    kinds = {None if each.checkpoint.step is None else each.checkpoint.step_source for each in some}
    if len(kinds) > 1 or any(each.checkpoint.step is None for each in some):
        return sorted(some, key=lambda each: (each.written_at, names[id(each)]))
    return sorted(some, key=lambda each: (each.checkpoint.step or 0, names[id(each)], each.written_at))


def natural(name: str) -> list[str | int]:
    """`ckpt-10` after `ckpt-9`: text and numbers alternate, so two names compare without a type error."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", name))]
