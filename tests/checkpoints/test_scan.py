"""Change the result of a scan by what was pinned since, in the order of discovery."""

from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.checkpoints.files import File
from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult, in_folder, parent_of, written_at
from sidecar.protocol.records import Checkpoint


def found(name, pin=None):
    checkpoint = Checkpoint(name=name, digest=name * 8, step=1, format="tf", pin=pin)
    return DiscoveredCheckpoint(checkpoint=checkpoint, folder=Path("/ckpts"), written_at=0.0, seen_at=0.0)


A, B, C = found("a"), found("b"), found("c")
KEYS = [each.checkpoint.key for each in (A, B, C)]
SCAN = ScanResult(by_key={KEYS[0]: A, KEYS[2]: C}, places=dict(zip(KEYS, range(3), strict=True)))


def test_pinned_checkpoints_are_those_with_a_pin():
    """List them in the order of discovery."""
    pinned = replace(C, checkpoint=replace(C.checkpoint, pin="pins/c"))
    assert SCAN.pinned() == {}
    assert SCAN.with_changes({KEYS[2]: pinned}).pinned() == {KEYS[2]: pinned}


def test_a_checkpoint_that_is_added_has_its_place():
    """Sort it where it was discovered; one that was never discovered comes last."""
    other = found("other")
    changed = SCAN.with_changes({other.checkpoint.key: other, KEYS[1]: B})
    assert changed.found == (A, B, C, other)


def test_a_checkpoint_that_is_removed_is_not_found():
    """Leave the result of the scan itself as it is."""
    assert SCAN.with_changes({KEYS[0]: None}).found == (C,)
    assert SCAN.found == (A, C)
    assert SCAN.with_changes({}) is SCAN


@pytest.mark.parametrize("name", ["ckpt-1", "epoch_1/ckpt-1", "a/b/ckpt-1"])
def test_a_full_name_is_a_folder_and_a_name(name):
    """Take a name apart and join it again."""
    assert in_folder(parent_of(name), name.rpartition("/")[2]) == name


def test_a_checkpoint_was_written_when_its_newest_file_was():
    """Return 0 for a checkpoint without files."""
    files = [File(f"f{number}", 1, number * 10**9, 1, 1) for number in (3, 7, 5)]
    assert (written_at(files), written_at([])) == (7.0, 0.0)
