"""Pins take what they may and leave what training needs: on paper, with refused links, and on a real small disk."""

import errno
import os
from functools import partial

import pytest
from catalogs import make_catalog
from disk import Disk
from fakes import FakeClock, save

from sidecar.errors import NoRoomError
from sidecar.retention.pins.disk_budget import DiskBudget, free_bytes
from sidecar.retention.pins.pin import pin, unpin
from sidecar.retention.pins.usage import pins_bytes, pins_bytes_alone

MEGABYTE = 1 << 20


def room(free, *, keep=1000, most=None):
    return DiskBudget(most, keep, lambda: free)


@pytest.mark.parametrize(
    ("bounds", "size", "held", "alone", "fits"),
    [
        (room(None), 10**12, 10**12, 10**12, True),
        (room(None, most=100), 50, 50, 0, True),
        (room(None, most=100), 51, 50, 0, False),
        (room(None, most=100), 1000, 0, 0, True),
        (room(1000), 10**6, 10**6, 10**6, True),
        (room(999), 10**6, 10**6, 0, True),
        (room(999), 500, 500, 500, False),
        (room(999), 500, 0, 0, True),
        (room(999), 5, 4, 4, True),
        (room(0), 1, 1, 1, False),
    ],
    ids=[
        *("no bounds", "up to the cap", "over the cap", "the first in any case", "enough is free"),
        *("little is free, pins hold nothing of it", "little is free because of pins", "the first in any case, again"),
        *("too small to matter", "nothing is free"),
    ],
)
def test_what_may_be_held(bounds, size, held, alone, fits):
    """A cap on all pins, and no more pins while they keep from training what it needs."""
    if fits:
        bounds.require(size, lambda: held, lambda: alone)
    else:
        with pytest.raises(NoRoomError, match="bytes"):
            bounds.require(size, lambda: held, lambda: alone)


@pytest.mark.parametrize(
    ("free", "size", "fits"),
    [(2000, 1000, True), (2000, 1001, False), (2000, 20, True), (900, 9, True), (900, 10, False), (0, 1, False)],
)
def test_what_may_be_copied(free, size, fits):
    """Allow a copy that leaves enough room, or is too small to matter."""
    if fits:
        room(free).require_copy(size)
    else:
        with pytest.raises(NoRoomError, match="keep_free_bytes"):
            room(free).require_copy(size)
    room(None).require_copy(10**15)


def test_small_copies_never_fill_a_disk():
    """However many: each takes a hundredth of what is left, at most."""
    free = 10**6
    for _ in range(10_000):
        size = max(free // 100, 1)
        try:
            room(free, keep=10**9).require_copy(size)
        except NoRoomError:
            break
        free -= size
    assert 0 < free < 1000


def test_free_bytes_of_a_folder_that_comes_later(tmp_path):
    """The storage is known before the folder of pins is."""
    assert free_bytes(tmp_path / "not" / "yet") == pytest.approx(free_bytes(tmp_path), rel=0.1)


@pytest.fixture
def place(tmp_path):
    """A checkpoint directory with three checkpoints."""
    for step in (1, 2, 3):
        save(tmp_path / "ckpts", step, keep=range(1, step))
    return tmp_path / "ckpts"


def found(folder, pins):
    return list(make_catalog(folder, pins, quiet_seconds=0.0, clock=FakeClock()).scan().found)


def test_what_pins_alone_hold(place):
    """Copies, and what training deleted since."""
    pins = place / ".sidecar" / "pins"
    (first, *_) = found(place, pins)
    pin(first, pins)
    index = (place / "ckpt-1.index").stat().st_size
    assert (pins_bytes_alone(pins), pins_bytes(pins)) == (index, index + 8)
    (place / "ckpt-1.data-00000-of-00001").unlink()
    assert pins_bytes_alone(pins) == index + 8


@pytest.mark.parametrize("code", [errno.EPERM, errno.EXDEV])
def test_a_copy_without_room_is_not_begun(place, code, system_calls):
    """Whole checkpoints are copied where links are refused; nothing is left of what cannot be."""
    pins = place / ".sidecar" / "pins"
    (first, *_) = found(place, pins)
    size = sum(file.size for file in first.files)
    system_calls.refuse("link", code)
    with pytest.raises(NoRoomError, match=rf"\b{size} bytes.*\b1000\b.*\b{999 + size}\b"):
        pin(first, pins, room=room(999 + size))
    assert list(pins.iterdir()) == []
    assert pin(first, pins, room=room(1000 + size)).checkpoint.pin is not None


def test_a_link_needs_room_for_what_is_copied_beside_it_only(place):
    """The index, which writers rewrite in place."""
    pins = place / ".sidecar" / "pins"
    (first, *_) = found(place, pins)
    data = place / "ckpt-1.data-00000-of-00001"
    os.truncate(data, 10 * MEGABYTE)
    (first, *_) = found(place, pins)
    assert pin(first, pins, room=room(MEGABYTE)).checkpoint.pin is not None
    assert (pins / first.checkpoint.folder / data.name).samefile(data)


def test_a_copy_ends_when_training_takes_the_room_meanwhile(place, system_calls):
    """It is asked before each file."""
    pins = place / ".sidecar" / "pins"
    (first, *_) = found(place, pins)
    free = iter([10**6, 500])
    system_calls.refuse("link", errno.EXDEV)
    with pytest.raises(NoRoomError):
        pin(first, pins, room=DiskBudget(None, 1000, lambda: next(free)))
    assert list(pins.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")
def test_copies_leave_a_real_disk_its_reserve(place, tmp_path):
    """The state directory is on a small disk of its own: the kernel refuses links and says what is free."""
    for step in (1, 2, 3):
        os.truncate(place / f"ckpt-{step}.data-00000-of-00001", 15 * MEGABYTE)
    keep = 20 * MEGABYTE
    with Disk(tmp_path / "disk") as disk:
        pins = disk.path / "pins"
        bounds = DiskBudget(None, keep, partial(free_bytes, disk.path))
        first, second, third = found(place, pins)
        pin(first, pins, room=bounds)
        assert free_bytes(pins) < keep + 2 * 15 * MEGABYTE
        pin(second, pins, room=bounds)
        with pytest.raises(NoRoomError, match="keep_free_bytes"):
            pin(third, pins, room=bounds)
        assert free_bytes(pins) >= keep
        assert len(list(pins.iterdir())) == 2
        unpin(first.checkpoint, pins)
        pin(third, pins, room=bounds)
        assert free_bytes(pins) >= keep
        assert {each.checkpoint.name for each in found(place, pins) if each.checkpoint.pin} == {"ckpt-2", "ckpt-3"}
