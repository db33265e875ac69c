"""`sidecar eval` and `sidecar check` load a checkpoint from a folder that holds nothing else, as daemons do."""

import errno
import os
from pathlib import Path

import pytest
from fakes import save

from sidecar.checkpoints.inspect import inspect_one
from sidecar.commands.own_folder import in_own_folder
from sidecar.errors import EvaluationFailedError, StorageError, VanishedError


@pytest.fixture
def path(tmp_path):
    """A checkpoint of two files, next to files of others."""
    save(tmp_path / "ckpts", 1)
    save(tmp_path / "ckpts", 2, keep=[1])
    (tmp_path / "ckpts" / "vocab.json").write_text("{}")
    return tmp_path / "ckpts" / "ckpt-2"


def test_its_files_are_there_and_no_others(path, tmp_path):
    """As links to the same content. The folder is removed at the end."""
    with in_own_folder(path, inspect_one(path), tmp_path / "run" / "saves") as own:
        assert own.name == "ckpt-2"
        assert sorted(file.name for file in own.parent.iterdir()) == ["ckpt-2.data-00000-of-00001", "ckpt-2.index"]
        assert own.with_suffix(".index").samefile(path.with_suffix(".index"))
        assert not own.with_suffix(".index").is_symlink()
    assert list((tmp_path / "run" / "saves").iterdir()) == []


@pytest.mark.parametrize("small", [True, False], ids=["copied", "symbolic link"])
def test_files_that_cannot_be_linked(path, tmp_path, system_calls, small):
    """Another filesystem, or a file of another user: the folder holds the same content all the same."""
    system_calls.refuse("link", errno.EPERM)
    suffix = ".data-00000-of-00001"
    if not small:
        os.truncate(path.with_suffix(suffix), 17 << 20)
    with in_own_folder(path, inspect_one(path), tmp_path) as own:
        assert own.with_suffix(suffix).stat().st_size == path.with_suffix(suffix).stat().st_size
        assert own.with_suffix(suffix).is_symlink() is not small
        assert own.with_suffix(".index").read_bytes() == path.with_suffix(".index").read_bytes()


def test_a_checkpoint_that_was_replaced_or_deleted(path, tmp_path):
    """Since it was found. Nothing is left."""
    found = inspect_one(path)
    save(tmp_path / "other", 3)
    for suffix in (".index", ".data-00000-of-00001"):
        Path(f"{tmp_path}/other/ckpt-3{suffix}").replace(f"{path}{suffix}")
    with pytest.raises(EvaluationFailedError, match="ckpt-2"), in_own_folder(path, found, tmp_path / "run"):
        pass
    path.with_suffix(".index").unlink()
    with pytest.raises(VanishedError, match="ckpt-2"), in_own_folder(path, found, tmp_path / "run"):
        pass
    assert list((tmp_path / "run").iterdir()) == []


def test_a_folder_that_cannot_be_written(path, tmp_path):
    """The error names the folder that cannot be written."""
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StorageError, match="file/run"),
        in_own_folder(path, inspect_one(path), tmp_path / "file" / "run"),
    ):
        pass


def test_folders_of_killed_commands_are_removed(path, tmp_path):
    """When they are a day old; another command may still need a new one."""
    old, new = tmp_path / ".checkpoint-old", tmp_path / ".checkpoint-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "ckpt-1.index").write_text("")
    os.utime(old, (0, 0))
    with in_own_folder(path, inspect_one(path), tmp_path):
        assert (old.exists(), new.exists()) == (False, True)
