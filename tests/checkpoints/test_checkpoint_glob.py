"""Compare each name of a path with its part of a pattern."""

import pytest
from catalogs import make_catalog
from fakes import put

from sidecar.checkpoints.inspect import restore_path, verify
from sidecar.retention.pins.pin import pin


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (("*",), ["ckpt-0"]),
        (("*/*",), ["epoch_1/ckpt-1", "epoch_2/ckpt-2", "run-7/ckpt-7"]),
        (("epoch_*/*",), ["epoch_1/ckpt-1", "epoch_2/ckpt-2"]),
        (("*", "*/ckpt-[17]"), ["ckpt-0", "epoch_1/ckpt-1", "run-7/ckpt-7"]),
        (("*/*/*",), ["checkpoints/epoch_03/ckpt-3"]),
        (("no*/*",), []),
    ],
)
def test_what_a_glob_finds(root, catalog, patterns, found):
    """Each name of a path is compared on its own; steps and files are found as anywhere."""
    for folder, step in (("", 0), ("epoch_1", 1), ("epoch_2", 2), ("run-7", 7), ("checkpoints/epoch_03", 3)):
        put(root / folder, step)
    scan = catalog(*patterns).scan()
    assert names(scan) == found
    assert [each.checkpoint.step for each in scan.found] == [int(name[-1]) for name in found]
    for each in scan.found:
        assert restore_path(each, each.folder) == str(root / each.checkpoint.name)
        assert verify(each.folder, each.checkpoint.name) == each.checkpoint.digest


def test_the_state_is_no_checkpoint(root, new_catalog, clock):
    """Wherever in the checkpoint directory it lies, and whatever the glob says."""
    put(root / "epoch_1", 1)
    state = root / "state"
    patterns = ("*/*", "*/*/*/*")
    (found,) = new_catalog(checkpoint_glob=patterns).scan().found
    pin(found, state / "run" / "pins")
    pin(found, state / "other" / "pins")
    catalog = make_catalog(root, state / "run" / "pins", quiet_seconds=3.0, clock=clock, checkpoint_glob=patterns)
    assert names(catalog.scan()) == ["epoch_1/ckpt-1"]
