"""Errors of storage about one pin, or about one checkpoint: what was known of it is kept, and the others go on."""

import errno
import json
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import pytest
from catalogs import make_catalog
from fakes import FakeClock, save
from faults import failing, hidden, path_of

from sidecar.checkpoints.presence import Presence
from sidecar.errors import StorageError
from sidecar.retention.pins.names import PIN_RECORD
from sidecar.retention.pins.pin import pin

CODES = [errno.EIO, errno.EACCES, errno.ESTALE]


class Place:
    """A checkpoint directory with ckpt-1 and ckpt-2 and, if they are to be pinned, their pins only."""

    def __init__(self, folder, *, pinned):
        self.root, self.clock = folder / "ckpts", FakeClock()
        self.pins = self.root / ".sidecar" / "pins"
        self.pins.mkdir(parents=True)
        for step in (1, 2):
            save(self.root, step, keep=range(1, step))
        if pinned:
            for found in self.catalog().scan().found:
                pin(found, self.pins)
            for path in self.root.glob("ckpt-*"):
                path.unlink()

    def catalog(self):
        """A new one of the place."""
        return make_catalog(self.root, self.pins, quiet_seconds=0.0, corrupt_after_seconds=60.0, clock=self.clock)

    def pin(self, step):
        """The folder of a pin."""
        (folder,) = self.pins.glob(f"ckpt-{step}@*")
        return folder


@pytest.fixture
def pinned(tmp_path):
    return Place(tmp_path, pinned=True)


@pytest.fixture
def lying(tmp_path):
    return Place(tmp_path, pinned=False)


def names(scan):
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
    assert (names(healed), healed.unknown) == (["ckpt-1", "ckpt-2"], {})


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", ["stat", "open", "scandir", "read"])
def test_a_pin_that_was_never_read_is_unknown_only(pinned, call, code):
    """The others are found."""
    catalog, folder = pinned.catalog(), pinned.pin(1)
    with failing(call, folder, code):
        for _ in range(2):
            scan = catalog.scan()
            assert (names(scan), scan.broken, list(scan.unknown)) == (["ckpt-2"], (), [folder.name])
            pinned.clock.seconds += 100
    assert names(catalog.scan()) == ["ckpt-1", "ckpt-2"]


def test_a_stale_pin_is_asked_for_once_more(pinned, monkeypatch):
    """NFS says so of what another client replaced; asked again it answers."""
    catalog, original, left = pinned.catalog(), os.stat, [None]

    def stat(path, *arguments, **settings):
        if str(path).startswith("ckpt-1@") and left:
            left.pop()
            raise OSError(errno.ESTALE, "Stale file handle")
        return original(path, *arguments, **settings)

    monkeypatch.setattr(os, "stat", stat)
    assert (catalog.scan().unknown, left) == ({}, [])


def test_a_pin_that_a_listing_misses_stands(pinned):
    """It is asked for by its name."""
    catalog = pinned.catalog()
    catalog.scan()
    with hidden(pinned.pin(1).name):
        scan = catalog.scan()
    assert (names(scan), scan.unknown) == (["ckpt-1", "ckpt-2"], {})
    shutil.rmtree(pinned.pin(1))
    assert names(catalog.scan()) == ["ckpt-2"]


def in_a_child_as_nobody(function):
    """What it returns, called by an ordinary user in a process of its own."""
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
                told.append((names(scan), [name.split("@")[0] for name in scan.unknown], len(scan.broken)))
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
    assert (names(scan), list(scan.unknown)) == (["ckpt-2"], [folder.name])
    assert "remove the link" in scan.unknown[folder.name]


# -- the checkpoint directory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", ["stat", "open", "read"])
def test_a_checkpoint_that_was_found_stays_so_while_it_cannot_be_read(lying, call, code):
    """The others are found meanwhile, and new ones too."""
    catalog = lying.catalog()
    before = {found.checkpoint.name: key for key, found in catalog.scan().by_key.items()}
    os.link(lying.root / "ckpt-1.index", lying.root / "link")  # it is to be looked at anew
    with failing(call, lying.root / "ckpt-1.index", code):
        lying.clock.seconds += 10
        save(lying.root, 3, keep=[1, 2])
        for _ in range(3):
            scan = catalog.scan()
            assert names(scan) == ["ckpt-1", "ckpt-2", "ckpt-3"]
            assert before["ckpt-1"] in scan.by_key
            assert [name.split("@")[0] for name in scan.unknown] == ["ckpt-1"]
            assert scan.corrupt == ()
            lying.clock.seconds += 100
    healed = catalog.scan()
    assert (names(healed), healed.unknown) == (["ckpt-1", "ckpt-2", "ckpt-3"], {})


def test_what_was_replaced_and_cannot_be_read_is_another(lying):
    """The content that was found is not there any more."""
    catalog = lying.catalog()
    catalog.scan()
    (lying.root / "ckpt-1.index").write_bytes(b"another content")
    with failing("open", lying.root / "ckpt-1.index", errno.EIO):
        scan = catalog.scan()
        assert (names(scan), scan.unknown) == (["ckpt-2"], {})


@pytest.mark.parametrize("code", CODES)
def test_a_file_that_events_tell_of_is_not_gone_if_it_cannot_be_asked_for(lying, code):
    """Only ENOENT says that."""
    catalog = lying.catalog()
    catalog.scan()
    with failing("stat", lying.root / "ckpt-1.index", code):
        scan = catalog.scan({"ckpt-1.index"}, sweep=False)
    assert names(scan) == ["ckpt-1", "ckpt-2"]
    assert [name.split("@")[0] for name in scan.unknown] == ["ckpt-1"]


@pytest.mark.parametrize("after", range(1, 6))
def test_a_listing_that_breaks_off_loses_nothing(lying, monkeypatch, after):
    """What it brought before is found by the next scan, though nothing changes any more."""
    catalog, original = lying.catalog(), os.scandir
    catalog.scan()
    lying.clock.seconds += 10
    save(lying.root, 3, keep=[1, 2])

    class Broken:
        """A listing that ends in an error."""

        def __init__(self, path):
            self.entries = original(path)

        def __enter__(self):
            for number, entry in enumerate(self.entries):
                if number == after:
                    raise OSError(errno.EIO, "Input/output error")
                yield entry

        def __exit__(self, *_):
            self.entries.close()

    def scandir(path):
        return Broken(path) if path_of(path) == str(lying.root) else original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(StorageError):
        catalog.scan()
    monkeypatch.undo()
    assert names(catalog.scan(frozenset())) == ["ckpt-1", "ckpt-2", "ckpt-3"]


# -- asked by name -----------------------------------------------------------------------------------------------------


def test_who_is_asked_by_name_says_what_is_there(lying):
    """All files as they were, or a pin; one that is gone or replaced is enough."""
    catalog = lying.catalog()
    found = catalog.scan().found[0]
    index = lying.root / "ckpt-1.index"
    assert catalog.ask(found).presence is Presence.THERE
    content = index.read_bytes()
    index.unlink()
    assert catalog.ask(found).presence is Presence.GONE
    index.write_bytes(content + b" ")
    assert catalog.ask(found).presence is Presence.GONE
    (lying.pins / found.checkpoint.folder).mkdir()
    assert catalog.ask(found).presence is Presence.THERE


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("place", ["", "ckpt-1.index", ".sidecar/pins"])
def test_who_cannot_be_asked_is_not_gone(lying, place, code):
    """Nothing is concluded from an error."""
    catalog = lying.catalog()
    found = catalog.scan().found[0]
    (lying.root / "ckpt-1.index").unlink()
    call = "stat" if place == "ckpt-1.index" else "open"
    with failing(call, lying.root / place if place else lying.root, code):
        presence, why = catalog.ask(found)
    assert presence is Presence.UNKNOWN
    assert os.strerror(code) in why
    assert catalog.ask(found).presence is Presence.GONE
