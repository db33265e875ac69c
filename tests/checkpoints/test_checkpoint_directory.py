"""Find checkpoints in a directory and its sub-folders, however storage answers."""

import errno
import os
import threading
import time

import pytest
from fakes import put, save
from faults import failing, path_of

from sidecar.checkpoints.inspect import inspect_one
from sidecar.checkpoints.watch import Watch
from sidecar.errors import StorageError, VanishedError

BOUND_SECONDS = 240

CODES = [errno.EIO, errno.EACCES, errno.ESTALE]


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


def test_what_is_broken_says_where(root, catalog, clock):
    """In the reasons and in the settlement, with the whole path."""
    put(root / "epoch_1", 1)
    index = root / "epoch_1/ckpt-1.index"
    index.write_bytes(index.read_bytes()[:-10])
    seen = catalog("*/*")
    assert [name for name, _ in seen.scan().waiting] == ["epoch_1/ckpt-1"]
    clock.seconds += 60
    (given_up,) = seen.scan().corrupt
    assert (given_up.name, given_up.verdict, given_up.step) == ("epoch_1/ckpt-1", "corrupt", 1)


def test_a_path_that_somebody_names(root):
    """It is named by its path from the checkpoint directory; where there is none, what to set is said."""
    put(root / "epoch_1", 5)
    assert inspect_one(root / "epoch_1/ckpt-5", root=root).name == "epoch_1/ckpt-5"
    assert inspect_one(root / "epoch_1/ckpt-5", root=root / "epoch_1").name == "ckpt-5"
    assert inspect_one(root / "epoch_1/ckpt-5", root=root / "other").name == "ckpt-5"
    with pytest.raises(VanishedError, match=r"checkpoint_glob = \"epoch_\*/\*\""):
        inspect_one(root / "ckpt-5", root=root)


def test_events_of_sub_folders(root, catalog):
    """Notice events of old folders, of new ones, and of new ones inside those."""
    put(root / "run" / "epoch_1", 1)
    changed = threading.Event()
    watch, seen = Watch(root, changed.set, folders=True, depth=2), catalog("run/*/*")

    def until(name):
        deadline = time.monotonic() + BOUND_SECONDS
        while name not in (found := names(seen.scan(watch.changed(), sweep=False))):
            assert changed.wait(deadline - time.monotonic()), f"{name} was not told of, only {found}"
            changed.clear()

    watch.start()
    try:
        watch.follow(seen.scan().folders)
        watch.changed()
        put(root / "run" / "epoch_1", 2)
        until("run/epoch_1/ckpt-2")
        (root / "run" / "epoch_2").mkdir()
        until("run/epoch_1/ckpt-2")
        put(root / "run" / "epoch_2", 3)
        until("run/epoch_2/ckpt-3")
        watch.follow(())
    finally:
        watch.stop()


def found_in(scan):
    return sorted(found.checkpoint.name for found in scan.found)


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
            assert found_in(scan) == ["ckpt-1", "ckpt-2", "ckpt-3"]
            assert before["ckpt-1"] in scan.by_key
            assert [name.split("@")[0] for name in scan.unknown] == ["ckpt-1"]
            assert scan.corrupt == ()
            lying.clock.seconds += 100
    healed = catalog.scan()
    assert (found_in(healed), healed.unknown) == (["ckpt-1", "ckpt-2", "ckpt-3"], {})


def test_what_was_replaced_and_cannot_be_read_is_another(lying):
    """The content that was found is not there any more."""
    catalog = lying.catalog()
    catalog.scan()
    (lying.root / "ckpt-1.index").write_bytes(b"another content")
    with failing("open", lying.root / "ckpt-1.index", errno.EIO):
        scan = catalog.scan()
        assert (found_in(scan), scan.unknown) == (["ckpt-2"], {})


@pytest.mark.parametrize("code", CODES)
def test_a_file_that_events_tell_of_is_not_gone_if_it_cannot_be_asked_for(lying, code):
    """Only ENOENT says that."""
    catalog = lying.catalog()
    catalog.scan()
    with failing("stat", lying.root / "ckpt-1.index", code):
        scan = catalog.scan({"ckpt-1.index"}, sweep=False)
    assert found_in(scan) == ["ckpt-1", "ckpt-2"]
    assert [name.split("@")[0] for name in scan.unknown] == ["ckpt-1"]


@pytest.mark.parametrize("after", range(1, 6))
def test_a_listing_that_breaks_off_loses_nothing(lying, monkeypatch, after):
    """A listing that an error interrupts loses no name: the next scan finds all of them without a further event."""
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
    assert found_in(catalog.scan(frozenset())) == ["ckpt-1", "ckpt-2", "ckpt-3"]
