"""Pin a checkpoint as one folder, or not at all."""

import errno
import shutil
import threading
from dataclasses import replace

import pytest
from disk import WatchedBudget

from sidecar.checkpoints.formats.tf_object import TfObject
from sidecar.checkpoints.inspect import restore_path, verify
from sidecar.errors import IncompleteError, StorageError, VanishedError
from sidecar.retention.pins import pin as pin_module
from sidecar.retention.pins.pin import pin, unpin

INDEX, DATA = "ckpt-3.index", "ckpt-3.data-00000-of-00001"


@pytest.fixture
def found(put, new_catalog):
    """The newest of three checkpoints."""
    put("keras")
    return new_catalog().scan().found[-1]


def listed(folder) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


@pytest.mark.tensorflow
def test_tensorflow_restores_a_pin(found, root, pins, real_writer, recorded):
    """The real reader restores under the new prefix, after the trainer deleted its own files."""
    pinned = pin(found, pins)
    for file in root.glob("ckpt-*"):
        file.unlink()
    assert real_writer.restore(restore_path(pinned, pinned.folder)) == recorded.wrote["keras"]["ckpt-3"]


def test_pinned_already(found, pins):
    """Pinning twice, or what another daemon pinned, is done at once."""
    first = pin(found, pins)
    inode = first.folder.stat().st_ino
    assert pin(found, pins).checkpoint == first.checkpoint
    assert pin(first, pins).folder == first.folder
    assert first.folder.stat().st_ino == inode


def test_two_daemons_pin_at_once(found, pins, before_inspection):
    """The other's rename comes first: its pin stands, ours is removed, both are content."""
    others = [lambda: pin(found, pins)]
    before_inspection(lambda *_: others and others.pop()())
    pinned = pin(found, pins)
    assert listed(pins) == [pinned.folder.name]
    assert verify(pinned.folder, "ckpt-3") == found.checkpoint.digest


@pytest.mark.parametrize("name", [INDEX, DATA])
def test_deleted_before_it_was_pinned(found, root, pins, name):
    """A file that is gone means that the checkpoint is."""
    (root / name).unlink()
    with pytest.raises(VanishedError):
        pin(found, pins)
    assert listed(pins) == []


def test_the_directory_is_gone(found, root, pins):
    """The state directory lies in it; pinning must not bring the directory back."""
    shutil.rmtree(root)
    with pytest.raises(VanishedError):
        pin(found, pins)
    assert not root.exists()


@pytest.mark.parametrize("files_known", [True, False])
def test_changed_since_it_was_found(found, root, pins, files_known):
    """Other content under the name is another checkpoint: nothing is pinned under this digest."""
    shutil.copy2(root / "ckpt-1.index", root / INDEX)
    shutil.copy2(root / "ckpt-1.data-00000-of-00001", root / DATA)
    with pytest.raises(IncompleteError):
        pin(found if files_known else replace(found, files=()), pins)
    assert listed(pins) == []


def test_half_overwritten(found, root, pins):
    """A new shard beside the old index, sizes equal, has the old digest; that the file is another one tells."""
    (root / "new").write_bytes((root / DATA).read_bytes())
    (root / "new").rename(root / DATA)
    with pytest.raises(IncompleteError, match="replaced"):
        pin(found, pins)


def test_index_being_rewritten(found, root, pins):
    """An index that is cut off at this moment is not corrupt, only not yet."""
    (root / INDEX).write_bytes((root / INDEX).read_bytes()[:100])
    with pytest.raises(IncompleteError):
        pin(replace(found, files=()), pins)
    with pytest.raises(IncompleteError):
        pin(found, pins)
    assert listed(pins) == []


def test_unpin(found, pins):
    """A pin goes as a whole; letting go twice is no error."""
    pinned = pin(found, pins)
    unpin(pinned.checkpoint, pins)
    assert listed(pins) == []
    unpin(pinned.checkpoint, pins)


def test_an_interrupted_unpin_leaves_no_pin(found, pins, new_catalog, system_calls):
    """The name goes before the files do, so a crash between leaves only what `clean` removes."""
    pinned = pin(found, pins)
    system_calls.refuse("unlink", errno.EIO)
    unpin(pinned.checkpoint, pins)
    assert all(one.checkpoint.pin is None for one in new_catalog().scan().found)
    (left,) = listed(pins)
    assert left.startswith(".tmp-")


@pytest.mark.parametrize(("call", "code"), [("rename", errno.ENOENT), ("mkdir", errno.EEXIST), ("link", errno.EEXIST)])
def test_requests_that_are_sent_twice_leave_nothing(found, pins, system_calls, call, code):
    """NFS: the first was carried out and its answer was lost, so the second finds it done, and says so."""
    pins.parent.mkdir(parents=True)
    system_calls.refuse(call, code, once_done=True)
    pinned = pin(found, pins)
    assert listed(pins) == [found.checkpoint.folder]
    assert verify(pinned.folder, "ckpt-3") == found.checkpoint.digest
    unpin(pinned.checkpoint, pins)
    assert listed(pins) == []


def test_one_that_is_removed_while_it_is_made_begins_anew(found, pins):
    """By a node that took it for left over: nobody is told that the checkpoint vanished."""

    def remove():
        (folder,) = pins.iterdir()
        shutil.rmtree(folder)

    with pytest.raises(StorageError, match="made again"):
        pin(found, pins, room=WatchedBudget(remove))
    assert listed(pins) == []


def test_a_pin_in_the_making_is_touched(found, pins, monkeypatch):
    """Others see that its maker lives, though nothing of it grows while all is compared."""
    monkeypatch.setattr(pin_module, "TOUCH_SECONDS", 0.01)
    seen = set()

    def compare(*_):
        (folder,) = pins.iterdir()
        for _ in range(1000):
            seen.add(folder.stat().st_mtime_ns)
            if len(seen) > 3:
                return
            threading.Event().wait(0.01)

    monkeypatch.setattr(TfObject, "check", compare)
    pin(found, pins, check=True)
    assert len(seen) > 3


def test_the_pins_cannot_be_written(found, pins):
    """A file where the folder should be is named in the error."""
    pins.parent.mkdir(parents=True)
    pins.write_text("")
    with pytest.raises(StorageError, match="pins"):
        pin(found, pins)
