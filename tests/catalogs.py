"""A catalog with its pins, as programs build it, for tests."""

from pathlib import Path

from sidecar.checkpoints.catalog import Catalog
from sidecar.retention.pins.index import PinIndex

_OF_PINS = ("corrupt_after_seconds", "step_key", "step_pattern", "checkpoint_pattern", "calls", "progress")


def make_catalog(root: Path, pins: Path, **settings) -> Catalog:
    """Return the catalog of a checkpoint directory and a folder of pins."""
    index = PinIndex(pins, **{name: value for name, value in settings.items() if name in _OF_PINS})
    return Catalog(root, pins, index, **settings)
