"""The watch: which checkpoint is next, and what becomes of the folder in which it is pinned."""

import errno
import logging
import os
import shutil
import time

import pytest

from sidecar.keras.checkpoint_watch import FOLDER, CheckpointWatch


@pytest.fixture
def new_watch(root, clock):
    def new(*, every=False, directory=root):
        log = logging.getLogger("tensorflow")
        return CheckpointWatch(directory, every=every, interval_seconds=1.0, clock=clock, log=log)

    return new


def name_of(found):
    return None if found is None else found.checkpoint.name


def test_the_latest_checkpoint_is_taken(put, root, new_watch):
    """Those before it are passed over; it is pinned while it is read, and nothing remains."""
    put("keras")
    with new_watch() as watch:
        found = watch.next()
        assert name_of(found) == "ckpt-3"
        assert FOLDER in watch.path(found)
        for file in root.glob("ckpt-3*"):
            file.unlink()
        assert os.path.exists(f"{watch.path(found)}.index")  # noqa: PTH110 - as TensorFlow opens it
        assert watch.is_unchanged(found)
        watch.finish(found, is_evaluated=True)
        assert watch.next() is None
    assert sorted(entry.name for entry in root.iterdir() if entry.name.startswith(".")) == []


def test_before_one_that_fails_an_older_one_is_taken(put, new_watch):
    """It was passed over, and may still be the newest one that can be read."""
    put("keras")
    with new_watch() as watch:
        watch.finish(watch.next(), is_evaluated=False)
        assert name_of(watch.next()) == "ckpt-2"


def test_every_checkpoint_is_taken_in_order(put, root, new_watch, clock):
    """Also those that are deleted after a glance between two batches."""
    put("keras", "ckpt-1*")
    put("keras", "checkpoint")
    with new_watch(every=True) as watch:
        clock.seconds += 10
        first = watch.next()
        put("keras")
        watch.glance()  # too early
        clock.seconds += 10
        watch.glance()
        for file in root.glob("ckpt-*"):
            file.unlink()
        taken = []
        while first is not None:
            taken.append(name_of(first))
            watch.finish(first, is_evaluated=True)
            first = watch.next()
    assert taken == ["ckpt-1", "ckpt-2", "ckpt-3"]


def test_a_directory_may_come_later(put, new_watch, tmp_path):
    """The trainer creates it."""
    later = tmp_path / "later"
    with new_watch(directory=later) as watch:
        assert watch.next() is None
        assert "does not exist" in watch.problem()
        assert not later.exists()
        shutil.copytree(put("keras"), later)
        assert name_of(watch.next()) == "ckpt-3"


def test_a_half_written_checkpoint_waits(put, new_watch):
    """And the problem names it."""
    put("keras", "ckpt-3.index")
    with new_watch() as watch:
        assert watch.next() is None
        assert "ckpt-3" in watch.problem()


def test_without_a_right_to_write_checkpoints_are_read_where_they_lie(put, new_watch, root, system_calls):
    """A change while they are read is noticed."""
    put("keras")
    system_calls.refuse("mkdir", errno.EROFS)
    with new_watch() as watch:
        found = watch.next()
        assert watch.path(found) == str(root / "ckpt-3")
        assert watch.is_unchanged(found)
        shutil.copy2(root / "ckpt-2.index", root / "ckpt-3.index")
        assert not watch.is_unchanged(found)
        watch.finish(found, is_evaluated=True)


def test_two_evaluators_do_not_disturb_each_other(put, new_watch, root):
    """Each has a folder of its own."""
    put("keras")
    with new_watch() as one, new_watch() as other:
        first, second = one.next(), other.next()
        assert name_of(first) == name_of(second) == "ckpt-3"
        assert one.path(first) != other.path(second)
        one.finish(first, is_evaluated=True)
        assert os.path.exists(f"{other.path(second)}.index")  # noqa: PTH110 - as TensorFlow opens it
    assert not (root / FOLDER).exists()


def test_folders_of_killed_evaluators_are_removed(put, new_watch, root):
    """Those of this host at once, those of others after a day; a folder of anything else stays."""
    put("keras")
    with new_watch() as alive:
        found = alive.next()
        host = next((root / FOLDER).iterdir()).name.rsplit("-", 2)[0]
        killed, elsewhere = root / FOLDER / f"{host}-999999999-00000000", root / FOLDER / "far-1-00000000"
        fresh, strange = root / FOLDER / "far-2-00000000", root / FOLDER / "notes"
        for folder in (killed, elsewhere, fresh, strange):
            (folder / "pins").mkdir(parents=True)
        old = time.time() - 25 * 3600
        for folder in (elsewhere, strange):
            os.utime(folder, (old, old))
        with new_watch():
            there = {folder.name for folder in (root / FOLDER).iterdir()}
        assert there == {fresh.name, strange.name, next(iter(there - {fresh.name, strange.name}))}
        assert os.path.exists(f"{alive.path(found)}.index")  # noqa: PTH110 - as TensorFlow opens it


def test_a_planted_folder_is_not_followed(put, new_watch, root, tmp_path, caplog):
    """Checkpoints are then read where they lie."""
    put("keras")
    target = tmp_path / "target"
    (target / "far-1-00000000").mkdir(parents=True)
    os.utime(target / "far-1-00000000", (0, 0))
    (root / FOLDER).symlink_to(target)
    with new_watch() as watch:
        found = watch.next()
        assert watch.path(found) == str(root / "ckpt-3")
    assert (target / "far-1-00000000").is_dir()
    assert "without protection" in caplog.text
