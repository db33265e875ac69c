"""Hold the complete checkpoints that this process knows, from the checkpoint directory and from the pins. No I/O.

A checkpoint that lies in both is represented by its pin, because training may delete the other one at any moment. The
checkpoints are in order of discovery. Steps that were read from names are consistent with each other.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from sidecar.checkpoints.discovery_order import DiscoveryOrder
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.inspect import stem_of
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.checkpoints.step_names import NamedSteps
from sidecar.protocol.records import Key


class KnownCheckpoints:
    """Merge the checkpoints that each scan reads in the directory and in the pins.

    Args:
        compares_names: Whether steps in names are found by a comparison of all names. False if the user set a pattern.
    """

    def __init__(self, *, compares_names: bool) -> None:
        self._compares_names = compares_names
        self._lying: Collection[DiscoveredCheckpoint] = []  # read in the directory by the last scan
        self._pinned: Mapping[Key, DiscoveredCheckpoint] = {}  # read in the pins by the last scan
        self._sources: dict[Key, DiscoveredCheckpoint] = {}  # both of these, as they were read
        self._merged: dict[Key, DiscoveredCheckpoint] = {}  # the same in order of discovery, with consistent steps
        self._order = DiscoveryOrder()
        self._names = NamedSteps()

    @property
    def by_key(self) -> Mapping[Key, DiscoveredCheckpoint]:
        """Return the complete checkpoints in order of discovery: the same object as long as nothing changes."""
        return self._merged

    @property
    def places(self) -> Mapping[Key, int]:
        """Return the places in the order of discovery, also of checkpoints that were discovered and are gone."""
        return self._order.places

    def merge(
        self, lying: Collection[DiscoveredCheckpoint], pinned: Mapping[Key, DiscoveredCheckpoint], now: float
    ) -> None:
        """Add the checkpoints that one scan read, and remove the others: `lying` in the directory, `pinned` in pins."""
        if lying == self._lying and pinned == self._pinned:
            return
        in_directory = {found.checkpoint.key: found for found in lying}
        sources = in_directory | dict(pinned)
        changed = {key: found for key, found in sources.items() if found is not self._sources.get(key)}
        changed |= self._with_agreed_steps(changed)
        new = [found for key, found in changed.items() if key not in self._merged]
        self._order.add(new, self._merged, in_directory, now)
        self._order.forget_gone(sources)
        merged = dict(self._merged)
        for key in self._merged.keys() - sources.keys():
            del merged[key]
        merged.update((key, self._as_discovered(found)) for key, found in changed.items())
        if new:
            merged = {key: merged[key] for key in sorted(merged, key=self._order.places.__getitem__)}
        self._merged = merged
        self._lying, self._pinned, self._sources = lying, pinned, sources

    def _with_agreed_steps(self, items: Mapping[Key, DiscoveredCheckpoint]) -> dict[Key, DiscoveredCheckpoint]:
        """Return the checkpoints whose steps are in their names, with steps from a comparison of all names.

        A step that a pin or an earlier scan gave to a checkpoint stays. So nodes that saw different names agree about
        pinned checkpoints, and the step of a checkpoint does not change.
        """
        named = {key: item for key, item in items.items() if item.checkpoint.step_source in ("name", "order")}
        if not self._compares_names or not named:
            return {}
        stems = {key: stem_of(item.checkpoint.name, FORMATS[item.checkpoint.format]) for key, item in named.items()}
        for stem in stems.values():
            self._names.add(stem)
        agreed = {}
        for key, item in named.items():
            if item.checkpoint.pin is None:
                known = self._merged.get(key)
                step = self._names.step(stems[key]) if known is None else known.checkpoint.step
                source = ("order" if step is None else "name") if known is None else known.checkpoint.step_source
                checkpoint = replace(item.checkpoint, step=step, step_source=source)
                agreed[key] = replace(item, checkpoint=checkpoint)
        return agreed

    def _as_discovered(self, item: DiscoveredCheckpoint) -> DiscoveredCheckpoint:
        """Return a checkpoint with the time of its first discovery."""
        seen_at = self._order.seen_at[item.checkpoint.key]
        return item if item.seen_at == seen_at else replace(item, seen_at=seen_at)
