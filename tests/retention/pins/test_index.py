"""Know pins by the whole path of the checkpoint that each holds."""

import shutil
from pathlib import Path

import pytest
from fakes import put

from sidecar.checkpoints.inspect import restore_path, verify
from sidecar.retention.pins.pin import pin


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


@pytest.fixture
def catalog(new_catalog):
    """A catalog that looks into some sub-folders."""

    def new(*patterns, **settings):
        return new_catalog(checkpoint_glob=tuple(patterns), **settings)

    return new


def test_a_pin_has_no_folders_in_its_name(root, pins, catalog):
    """One name of a file, that no other checkpoint has; another daemon reads from it which checkpoint it holds."""
    put(root / "epoch_1", 5)
    put(root / "epoch_2", 5)  # the same content
    put(root, 5)
    shutil.copytree(root / "epoch_1", root / "epoch_1%2Fckpt-5")
    found = catalog("*", "*/*").scan().found
    assert sorted(each.checkpoint.name for each in found) == [
        "ckpt-5",
        "epoch_1%2Fckpt-5/ckpt-5",
        "epoch_1/ckpt-5",
        "epoch_2/ckpt-5",
    ]
    pinned = [pin(each, pins) for each in found]
    assert len({each.folder.name for each in pinned}) == 4
    assert not any("/" in each.folder.name for each in pinned)
    shutil.rmtree(root / "epoch_1")
    shutil.rmtree(root / "epoch_1%2Fckpt-5")
    again = catalog("*", "*/*").scan().pinned()
    assert {each.checkpoint.key for each in pinned} == again.keys()
    for each in again.values():
        assert verify(each.folder, each.checkpoint.name) == each.checkpoint.digest
        assert Path(f"{restore_path(each, each.folder)}.index").exists()


def test_a_long_path_is_read_back_from_its_pin(root, pins, catalog):
    """The pin's name is cut, so the pin's record says in which folder the checkpoint lay."""
    folder = put(root / ("e" * 120) / ("f" * 120), 5)
    (found,) = catalog("*/*/*").scan().found
    pin(found, pins)
    shutil.rmtree(folder.parent)
    (again,) = catalog("*/*/*").scan().found
    assert again.checkpoint.key == found.checkpoint.key
    assert again.checkpoint.pin is not None


@pytest.mark.parametrize("name", ["..%2F..%2Fckpt-5", "%2Fckpt-5", "a%2F%2Fckpt-5", "%FF%2Fckpt-5"])
def test_a_pin_that_lies_about_its_folder(root, pins, catalog, name):
    """A user who may write there names pins as they like: no name leads out of the checkpoint directory."""
    put(root, 5)
    (found,) = catalog("*").scan().found
    pinned = pin(found, pins)
    pinned.folder.rename(pinned.folder.with_name(f"{name}@{found.checkpoint.digest[:12]}"))
    scan = catalog("*", "*/*").scan()
    assert names(scan) == ["ckpt-5"]
    assert scan.pinned() == {}


def test_a_pinned_one_is_known_by_its_whole_name(root, pins, catalog):
    """A folder's name decides: the record in the pin is only what it is cut for."""
    put(root / "epoch_1", 1)
    (found,) = catalog("*/*").scan().found
    pinned = pin(found, pins)
    (pinned.folder / ".checkpoint.json").unlink()
    assert catalog("*/*").scan().pinned().keys() == {found.checkpoint.key}
