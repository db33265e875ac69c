"""Declare the result of a scan of the pins, for the catalog.

`pins.index` makes it. This package must not import `pins`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sidecar.checkpoints.scan import BrokenPin, DiscoveredCheckpoint
from sidecar.protocol.records import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class PinScan:
    """Hold the result of one scan of the pins.

    `found`: the checkpoints that pins hold. `reasons`: (folder name, reason) of each pin that cannot be used. The other
    fields are as in `ScanResult`, but `making` also has the unfinished pins of checkpoints that this scan found.
    """

    found: Mapping[Key, DiscoveredCheckpoint] = field(default_factory=dict)
    broken: tuple[BrokenPin, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    unclaimed: frozenset[str] = frozenset()
    reasons: tuple[tuple[str, str], ...] = ()
    making: frozenset[str] = frozenset()


class PinScanner(Protocol):
    """Scan the pins of a run."""

    def scan(self, now: float) -> PinScan:
        """Scan once; `now` in seconds of the node's clock. Raises `StorageError` if nothing can be read."""
