"""Measure what the folder of pins takes, and how far unfinished pins are."""

import errno

import pytest
from disk import WatchedBudget

from sidecar.retention.pins.pin import pin
from sidecar.retention.pins.usage import bytes_copied, pins_bytes

INDEX, DATA = "ckpt-3.index", "ckpt-3.data-00000-of-00001"


@pytest.fixture
def found(put, new_catalog):
    """The newest of three checkpoints."""
    put("keras")
    return new_catalog().scan().found[-1]


def test_others_see_how_far_a_copy_is(found, pins, system_calls):
    """By the checkpoint's digest; nothing is told of pins that are whole."""
    system_calls.refuse("link", errno.EPERM)
    seen = []
    pin(found, pins, room=WatchedBudget(lambda: seen.append(bytes_copied(pins))))
    sizes = [each[found.checkpoint.digest[:12]] for each in seen]
    assert sizes == [sum(file.size for file in found.files[:place]) for place in range(len(found.files))]
    assert bytes_copied(pins) == {}


def test_bytes(found, root, pins):
    """The size of the pins counts each pinned file in full; a missing folder of pins has size zero."""
    assert pins_bytes(pins) == 0
    pin(found, pins)
    assert pins_bytes(pins) == (root / INDEX).stat().st_size + (root / DATA).stat().st_size
