"""Define the order in which this node discovered checkpoints, which is the order in which they are evaluated.

Checkpoints of one scan are ordered by step if all of their steps are known and were found in the same way. Otherwise
they are ordered by the time at which they were written, because steps of two kinds cannot be compared.

A checkpoint of a later scan comes last, with two exceptions, both written before a known checkpoint: a pin that another
node made of a checkpoint that training has deleted since, and a checkpoint of a lower step that could not be read until
now. After a rollback training writes lower steps later, so the time of writing decides.
"""

import re
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.protocol.records import Checkpoint, Key

GONE_REMEMBERED: Final = 1000
"""The checkpoints that are remembered after they are gone: more than a listing can miss, and few enough for a year."""

_FORGOTTEN_AT_ONCE: Final = 100


@dataclass(slots=True)
class DiscoveryOrder:
    """Hold the checkpoints that were discovered, of those that are gone the newest thousand.

    One that vanishes for a while must not appear new again. `places`: the place of each in the order; 0 is the first.
    `seen_at`: `Clock.now()` of the discovery.
    """

    places: dict[Key, int] = field(default_factory=dict)
    seen_at: dict[Key, float] = field(default_factory=dict)
    gone_remembered: int = GONE_REMEMBERED
    _end: int = 0  # the place of the next one

    def add(
        self,
        new: Iterable[DiscoveredCheckpoint],
        known: Mapping[Key, DiscoveredCheckpoint],
        in_directory: Container[Key],
        now: float,
    ) -> None:
        """Give each checkpoint in `new` a place. One that has a place retains it.

        `known`: the checkpoints that the last scan found. `in_directory`: those that training has not deleted.
        """
        items = _in_order(new)
        # One that was gone, and is there again as a pin of another node, has retained its place.
        known = {**known, **{item.checkpoint.key: item for item in items if item.checkpoint.key in self.places}}
        newest = max((item.written_at for item in known.values()), default=0.0) if items else 0.0
        for item in items:
            key = item.checkpoint.key
            if key in self.places:
                continue
            later = _later(item, known, in_directory=key in in_directory) if item.written_at < newest else []
            if later:
                self._insert(key, min(later, key=self.places.__getitem__))
            else:
                self.places[key], self.seen_at[key] = self._end, now
            self._end += 1

    def forget_gone(self, present: Collection[Key]) -> None:
        """Forget the checkpoints that are not present, but for those that were discovered last."""
        if len(self.places) > len(present) + self.gone_remembered + _FORGOTTEN_AT_ONCE:
            for key in [key for key in self.places if key not in present][: -self.gone_remembered]:
                del self.places[key], self.seen_at[key]

    def _insert(self, key: Key, successor: Key) -> None:
        """Give a checkpoint the place and time of discovery of its `successor`, which moves one place up."""
        place = self.places[successor]
        for other, after in self.places.items():
            if after >= place:
                self.places[other] = after + 1
        self.places[key], self.seen_at[key] = place, self.seen_at[successor]


def _later(this: DiscoveredCheckpoint, known: Mapping[Key, DiscoveredCheckpoint], *, in_directory: bool) -> list[Key]:
    """Return the known checkpoints that certainly appeared later than this one."""
    return [
        key
        for key, item in known.items()
        if item.written_at > this.written_at
        and (not in_directory or _is_of_lower_step(this.checkpoint, item.checkpoint))
    ]


def _is_of_lower_step(this: Checkpoint, other: Checkpoint) -> bool:
    """Return whether both steps are known, found in the same way, and the first is lower."""
    if this.step is None or other.step is None:
        return False
    return this.step_source == other.step_source and this.step < other.step


def numbered(found: Iterable[Checkpoint]) -> dict[Key, int]:
    """Number the checkpoints without a step from 1, in the given order, which is that of their discovery.

    The journal numbers them in the order in which they are evaluated, which is usually the same.
    """
    return {
        checkpoint.key: number
        for number, checkpoint in enumerate((each for each in found if each.step is None), start=1)
    }


def _in_order(new: Iterable[DiscoveredCheckpoint]) -> list[DiscoveredCheckpoint]:
    """Return the checkpoints of one scan in order. Two contents under one name are ordered by time of writing."""
    items = list(new)
    names = {id(item): natural(item.checkpoint.name) for item in items}
    sources = {None if item.checkpoint.step is None else item.checkpoint.step_source for item in items}
    if len(sources) > 1 or any(item.checkpoint.step is None for item in items):
        return sorted(items, key=lambda item: (item.written_at, names[id(item)]))
    return sorted(items, key=lambda item: (item.checkpoint.step or 0, names[id(item)], item.written_at))


def natural(name: str) -> list[str | int]:
    """Return a sort key that puts `ckpt-10` after `ckpt-9`: text and numbers alternate, so any two keys compare."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", name))]
