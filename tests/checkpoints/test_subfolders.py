"""Scan sub-folders that come, go, and cannot be read."""

import errno
import shutil

import pytest
from fakes import put
from faults import path_of

from sidecar.checkpoints import subfolders
from sidecar.checkpoints.presence import Presence
from sidecar.errors import IncompleteError, VanishedError
from sidecar.retention.pins.pin import pin


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


def test_folders_come_and_go(root, catalog, clock):
    """New ones are seen by the sweep, without events; what was in one that is gone is gone, by its own files."""
    seen = catalog("epoch_*/*")
    assert names(seen.scan()) == []
    put(root / "epoch_1", 1)
    clock.seconds += 2
    (found,) = seen.scan(set(), sweep=True).found
    (root / "epoch_2").mkdir()
    clock.seconds += 2
    seen.scan(set(), sweep=True)
    put(root / "epoch_2", 2)
    clock.seconds += 2
    assert names(seen.scan(set(), sweep=True)) == ["epoch_1/ckpt-1", "epoch_2/ckpt-2"]
    assert seen.ask(found).presence is Presence.THERE
    shutil.rmtree(root / "epoch_1")
    assert names(seen.scan()) == ["epoch_2/ckpt-2"]
    assert seen.ask(found).presence is Presence.GONE
    put(root / "epoch_1", 1)
    assert names(seen.scan()) == ["epoch_1/ckpt-1", "epoch_2/ckpt-2"]
    shutil.rmtree(root)
    assert seen.scan().missing


def test_a_hint_leads_into_a_folder(root, catalog):
    """A file that an event named in a sub-folder is scanned without a full sweep."""
    put(root / "epoch_1", 1)
    seen = catalog("epoch_*/*")
    seen.scan()
    put(root / "epoch_1", 3)
    assert names(seen.scan(set(), sweep=False)) == ["epoch_1/ckpt-1"]
    hints = {f"epoch_1/{each.name}" for each in (root / "epoch_1").iterdir()}
    assert names(seen.scan(hints, sweep=False)) == ["epoch_1/ckpt-1", "epoch_1/ckpt-3"]


def test_links_are_not_entered(root, catalog, tmp_path, pins):
    """Neither out of the checkpoint directory nor in it; and a folder that became a link is not read through it."""
    outside = put(tmp_path / "outside", 9)
    put(root / "epoch_1", 1)
    (root / "latest").symlink_to("epoch_1")
    (root / "epoch_2").symlink_to(outside)
    seen = catalog("*/*")
    (found,) = seen.scan().found
    assert found.checkpoint.name == "epoch_1/ckpt-1"
    shutil.rmtree(root / "epoch_1")
    shutil.copytree(outside, tmp_path / "theirs")
    for each in (tmp_path / "theirs").iterdir():
        each.rename(each.with_name(each.name.replace("ckpt-9", "ckpt-1")))
    (root / "epoch_1").symlink_to(tmp_path / "theirs")
    assert names(seen.scan()) == []
    assert seen.ask(found).presence is Presence.GONE
    with pytest.raises((VanishedError, IncompleteError)):
        pin(found, pins)
    assert not any(pins.iterdir())


def test_one_folder_that_cannot_be_read(root, catalog, system_calls):
    """The others go on; what was known of it is unknown, not gone."""
    for number in (1, 2):
        put(root / f"epoch_{number}", number)
    seen = catalog("*/*")
    seen.scan()
    denied = str(root / "epoch_1")
    system_calls.refuse("open", errno.EACCES, lambda path, *_, dir_fd=None, **__: path_of(path, dir_fd) == denied)
    put(root / "epoch_2", 3)
    scan = seen.scan()
    system_calls.allow()
    assert names(scan) == ["epoch_1/ckpt-1", "epoch_2/ckpt-2", "epoch_2/ckpt-3"]
    assert list(scan.unknown) == [each.checkpoint.folder for each in scan.found[:1]]
    assert ("epoch_1", "cannot be read: Permission denied") in scan.waiting
    scan = seen.scan()
    assert (scan.unknown, scan.waiting) == ({}, ())


def test_as_many_as_are_looked_at(root, catalog, clock, monkeypatch):
    """More than that are left out, and it is said; all others are seen in turn, those that change in each sweep."""
    monkeypatch.setattr(subfolders, "MOST_FOLDERS", 30)
    monkeypatch.setattr(subfolders, "_FOLDERS_PER_SWEEP", 4)
    for number in range(31):
        (root / f"epoch_{number}").mkdir()
    seen = catalog("epoch_*/*")
    assert [name for name, why in seen.scan(set()).waiting if "30" in why] == ["."]
    clock.seconds += 300
    seen.scan(set())
    put(root / "epoch_0", 1)
    for _ in range(9):
        clock.seconds += 2
        scan = seen.scan(set())
    assert names(scan) == ["epoch_0/ckpt-1"]
    put(root / "epoch_0", 2)  # it changed last
    clock.seconds += 2
    assert names(seen.scan(set())) == ["epoch_0/ckpt-1", "epoch_0/ckpt-2"]
