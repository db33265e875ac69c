"""Describe what the catalog needs to know of pins. Pins are read by `pins.index`, which this room does not import."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sidecar.checkpoints.scan import BrokenPin, DiscoveredCheckpoint
from sidecar.records import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class PinScan:
    """What one scan of the pins saw; `broken`, `making`, `unknown` and `unclaimed` are as in `ScanResult`.

    `found`: the checkpoints that pins hold. `reasons`: (folder name, reason) of pins that hold nothing usable. `making`
    also has those whose checkpoint was found here.
    """

    found: Mapping[Key, DiscoveredCheckpoint] = field(default_factory=dict)
    broken: tuple[BrokenPin, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    unclaimed: frozenset[str] = frozenset()
    reasons: tuple[tuple[str, str], ...] = ()
    making: frozenset[str] = frozenset()


class PinScanner(Protocol):
    """Scans the pins of a run."""

    def scan(self, now: float) -> PinScan:
        """Scan once; `now` in seconds of the node's clock. Raises `StorageError` if nothing can be read."""
        ...
