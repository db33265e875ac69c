"""Know pins by the whole path of the checkpoint that each holds, also while one cannot be read for a while."""

import errno
import json
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import pytest
from checkpoints.conftest import Place
from fakes import put
from faults import failing, hidden

from sidecar.checkpoints.inspect import restore_path, verify
from sidecar.errors import StorageError
from sidecar.retention.pins.names import PIN_RECORD
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


CODES = [errno.EIO, errno.EACCES, errno.ESTALE]


def found_in(scan):
    return sorted(found.checkpoint.name for found in scan.found)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", ["stat", "open", "scandir", "read"])
def test_a_pin_that_was_read_stays_known_while_it_cannot_be(pinned, call, code):
    """It is neither gone nor broken, however long that lasts, and it is named with the reason."""
    catalog, folder = pinned.catalog(), pinned.pin(1)
    before = catalog.scan()
    os.utime(folder)  # as by a hand that restored it: it is to be read anew
    with failing(call, folder, code):
        for _ in range(3):
            scan = catalog.scan()
            assert scan.by_key.keys() == before.by_key.keys()
            assert (scan.broken, scan.corrupt) == ((), ())
            assert list(scan.unknown) == [folder.name]
            assert os.strerror(code) in scan.unknown[folder.name]
            pinned.clock.seconds += 100
    healed = catalog.scan()
    assert (found_in(healed), healed.unknown) == (["ckpt-1", "ckpt-2"], {})


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", ["stat", "open", "scandir", "read"])
def test_a_pin_that_was_never_read_is_unknown_only(pinned, call, code):
    """The others are found."""
    catalog, folder = pinned.catalog(), pinned.pin(1)
    with failing(call, folder, code):
        for _ in range(2):
            scan = catalog.scan()
            assert (found_in(scan), scan.broken, list(scan.unknown)) == (["ckpt-2"], (), [folder.name])
            pinned.clock.seconds += 100
    assert found_in(catalog.scan()) == ["ckpt-1", "ckpt-2"]


def test_a_stale_pin_is_asked_for_once_more(pinned, system_calls):
    """NFS says so of what another client replaced; asked again it answers."""
    catalog, left = pinned.catalog(), [True]
    system_calls.refuse("stat", errno.ESTALE, lambda path, **_: str(path).startswith("ckpt-1@") and left and left.pop())
    assert (catalog.scan().unknown, left) == ({}, [])


def test_a_pin_that_a_listing_misses_stands(pinned):
    """It is asked for by its name."""
    catalog = pinned.catalog()
    catalog.scan()
    with hidden(pinned.pin(1).name):
        scan = catalog.scan()
    assert (found_in(scan), scan.unknown) == (["ckpt-1", "ckpt-2"], {})
    shutil.rmtree(pinned.pin(1))
    assert found_in(catalog.scan()) == ["ckpt-2"]


def in_a_child_as_nobody(function):
    """Return what it returns, called by an ordinary user in a process of its own."""
    readable, writable = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writable, pickle.dumps(function()))
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    assert told, "the child failed; its error output is above"
    return pickle.loads(told)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_pin_without_permissions_stays_known():
    """A real one, and a real user who is not root: chmod 0 for two minutes, then back."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), pinned=True)
        Path(folder).chmod(0o755)
        for path in (place.root, *place.root.rglob("*"), *place.root.rglob(".*")):
            os.chown(path, 65534, 65534)

        def scans():
            catalog, told = place.catalog(), []
            for mode in (0o755, 0, 0, 0o755):
                place.pin(1).chmod(mode)
                scan = catalog.scan()
                told.append((found_in(scan), [name.split("@")[0] for name in scan.unknown], len(scan.broken)))
                place.clock.seconds += 60
            return told

        both = ["ckpt-1", "ckpt-2"]
        assert in_a_child_as_nobody(scans) == [
            (both, [], 0),
            (both, ["ckpt-1"], 0),
            (both, ["ckpt-1"], 0),
            (both, [], 0),
        ]


@pytest.mark.parametrize("field", [{"format": "zarr"}, {"schema": 99}])
def test_what_a_newer_release_pinned_is_not_judged(pinned, field):
    """Its format or its record is not known here: it is kept, however long it cannot be read."""
    folder = pinned.pin(1)
    record = json.loads((folder / PIN_RECORD).read_text()) | field
    for path in folder.glob("ckpt-*"):
        path.rename(folder / "model.zarr")
    (folder / PIN_RECORD).write_text(json.dumps(record))
    catalog = pinned.catalog()
    for _ in range(3):
        scan = catalog.scan()
        assert (scan.broken, scan.unclaimed) == ((), frozenset())
        assert "needs a newer release of this daemon" in scan.unknown[folder.name]
        pinned.clock.seconds += 100


def test_the_pins_may_be_no_link(pinned, tmp_path):
    """It would lead to where this program must not delete."""
    pinned.pins.rename(tmp_path / "elsewhere")
    pinned.pins.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=rf"{pinned.pins} is a link"):
        pinned.catalog().scan()


def test_a_pin_may_be_no_link(pinned, tmp_path):
    """It is named, with what to do; the others are found."""
    folder = pinned.pin(1)
    folder.rename(tmp_path / folder.name)
    folder.symlink_to(tmp_path / folder.name)
    scan = pinned.catalog().scan()
    assert (found_in(scan), list(scan.unknown)) == (["ckpt-2"], [folder.name])
    assert "remove the link" in scan.unknown[folder.name]
