"""Gather the files of a checkpoint by links or copies, whatever storage answers."""

import contextlib
import errno
import os
from dataclasses import replace

import pytest
from disk import WatchedBudget
from faults import failing

from sidecar.checkpoints.inspect import verify
from sidecar.errors import MustCopyError, StorageError, UnreadableError, VanishedError
from sidecar.retention.pins import link_or_copy as gather_module
from sidecar.retention.pins.names import PIN_RECORD
from sidecar.retention.pins.pin import pin

INDEX, DATA = "ckpt-3.index", "ckpt-3.data-00000-of-00001"


@pytest.fixture
def found(put, new_catalog):
    """The newest of three checkpoints."""
    put("keras")
    return new_catalog().scan().found[-1]


def listed(folder) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def test_index_is_copied_and_data_linked(found, root, pins):
    """The index is rewritten in place by writers, so a link would change with it; shards are replaced by renames."""
    pinned = pin(found, pins)
    assert sorted(file.name for file in pinned.folder.iterdir()) == [PIN_RECORD, DATA, INDEX]
    assert (pinned.folder / DATA).samefile(root / DATA)
    assert not (pinned.folder / INDEX).samefile(root / INDEX)
    assert listed(pins) == [found.checkpoint.folder]
    (root / INDEX).write_bytes(b"rewritten in place")
    assert verify(pinned.folder, "ckpt-3") == found.checkpoint.digest


@pytest.mark.parametrize("code", [errno.EPERM, errno.EXDEV, errno.ENOSYS])
def test_refused_links_are_copied(found, root, pins, system_calls, code):
    """Another user's files, another filesystem, no links at all: then the shard is copied, its time of writing too."""
    system_calls.refuse("link", code)
    pinned = pin(found, pins)
    assert not (pinned.folder / DATA).samefile(root / DATA)
    assert (pinned.folder / DATA).read_bytes() == (root / DATA).read_bytes()
    assert (pinned.folder / DATA).stat().st_mtime_ns == (root / DATA).stat().st_mtime_ns


def test_what_must_be_copied_is_left_to_another_node_if_asked_to(found, pins, monkeypatch, system_calls):
    """Nothing is held then, and nothing left over; but what is small is copied by whoever finds it."""
    system_calls.refuse("link", errno.EPERM)
    monkeypatch.setattr(gather_module, "_SMALL_BYTES", 0)
    with pytest.raises(MustCopyError, match="ckpt-3 cannot be linked"):
        pin(found, pins, copies=False)
    assert listed(pins) == []
    monkeypatch.undo()
    system_calls.refuse("link", errno.EPERM)
    assert pin(found, pins, copies=False).folder.is_dir()


def test_other_errors_of_links_are_told(found, pins, system_calls):
    """A full disk is a storage error, and leaves nothing behind."""
    system_calls.refuse("link", errno.ENOSPC)
    with pytest.raises(StorageError, match="No space"):
        pin(found, pins)
    assert listed(pins) == []


def test_deleted_by_another_client(found, root, pins):
    """NFS says ESTALE of what was opened before; then its name says whether it is gone."""

    def stale():
        (root / DATA).unlink(missing_ok=True)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with pytest.raises(VanishedError):
        pin(found, pins, room=WatchedBudget(stale))
    assert listed(pins) == []


@pytest.mark.parametrize("times", [1, 100])
def test_stale_files_that_are_there_say_nothing(found, pins, times):
    """They are opened once more by their names; if that does not help, this node cannot read them now."""
    left = [None] * times

    def stale():
        if left:
            left.pop()
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    room = WatchedBudget(stale)
    if times == 1:
        assert pin(found, pins, room=room).folder.is_dir()
        return
    with pytest.raises(UnreadableError, match="Stale"):
        pin(found, pins, room=room)
    assert listed(pins) == []


def test_a_link_within_the_directory(found, root, pins):
    """A pin of a link holds the file that the link leads to."""
    (root / DATA).rename(root / "real")
    (root / DATA).symlink_to("real")
    pinned = pin(replace(found, files=()), pins)
    assert not (pinned.folder / DATA).is_symlink()
    assert (pinned.folder / DATA).samefile(root / "real")


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("where", ["open", "read", "inspect"])
def test_what_cannot_be_read_is_the_trouble_of_one_checkpoint(found, pins, before_inspection, code, where):
    """A bad block, or a shard that the daemon's user may not read: others must not wait for it."""

    def refused(*_):
        raise OSError(code, os.strerror(code))

    bad = contextlib.nullcontext()
    if where == "inspect":
        before_inspection(refused)
    else:
        bad = failing(where, found.folder / INDEX, code)
    with bad, pytest.raises(UnreadableError, match=os.strerror(code)):
        pin(found, pins)
    assert listed(pins) == []
