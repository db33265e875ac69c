"""Copy checkpoints into a folder that no other evaluator touches."""

import logging
import os
import time

import pytest

from sidecar.keras.checkpoint_watch import CheckpointWatch
from sidecar.keras.private_folder import FOLDER


@pytest.fixture
def new_watch(root, clock):
    def new(*, every=False, directory=root):
        log = logging.getLogger("tensorflow")
        return CheckpointWatch(directory, every=every, interval_seconds=1.0, clock=clock, log=log)

    return new


def name_of(found):
    return None if found is None else found.checkpoint.name


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
