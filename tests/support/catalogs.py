"""A catalog with its pins, as programs build it, for tests."""

from dataclasses import fields
from pathlib import Path

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.retention.pins.index import PinIndex

_RULES = {field.name for field in fields(DiscoveryRules)}


def make_catalog(root: Path, pins: Path, **settings) -> Catalog:
    """Return the catalog of a checkpoint directory and a folder of pins."""
    rules = DiscoveryRules(**{name: value for name, value in settings.items() if name in _RULES})
    rest = {name: value for name, value in settings.items() if name not in _RULES}
    index = PinIndex(pins, rules, **{name: value for name, value in rest.items() if name in ("calls", "progress")})
    return Catalog(root, pins, index, rules=rules, **rest)
