"""Which folders a demo takes, and which it leaves alone."""

import pytest

from sidecar.commands.demo.folder import MARK, claimed
from sidecar.errors import SettingsError


def test_folder_that_does_not_exist_is_made(tmp_path):
    """With its parents, marked, and with the places that processes write to."""
    with claimed(tmp_path / "a" / "demo") as folder:
        assert folder.checkpoints.is_dir()
        assert folder.logs.is_dir()
    assert (tmp_path / "a" / "demo" / MARK).is_file()


def test_empty_folder_is_taken(tmp_path):
    """There is nothing in it to lose."""
    with claimed(tmp_path) as folder:
        assert folder.root == tmp_path


def test_earlier_demo_is_replaced(tmp_path):
    """Nothing of it is left: an old checkpoint would be evaluated as if it were new."""
    with claimed(tmp_path / "demo") as folder:
        (folder.checkpoints / "ckpt-1.index").touch()
        (folder.logs / "train-chief.log").touch()
    with claimed(tmp_path / "demo") as folder:
        assert not list(folder.checkpoints.iterdir())
        assert not list(folder.logs.iterdir())


def test_link_inside_an_earlier_demo_is_not_followed(tmp_path):
    """The target of a link in the folder of an earlier demo belongs to somebody else and is not deleted."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis").touch()
    with claimed(tmp_path / "demo") as folder:
        folder.checkpoints.rmdir()
        folder.checkpoints.symlink_to(tmp_path / "precious")
    with claimed(tmp_path / "demo"):
        assert (tmp_path / "precious" / "thesis").exists()


def test_folder_of_something_else_is_refused(tmp_path):
    """Even if its files are named as ours are: only the mark counts."""
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(SettingsError, match=rf"{tmp_path}.*no demo made"), claimed(tmp_path):
        pass
    assert (tmp_path / "checkpoints").is_dir()


def test_demo_in_which_somebody_put_a_file_is_refused(tmp_path):
    """That file would be deleted; nothing is touched, and the message names it."""
    with claimed(tmp_path) as folder:
        (folder.logs / "old.log").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(SettingsError, match=r"notes\.txt"), claimed(tmp_path):
        pass
    assert (tmp_path / "logs" / "old.log").exists()


def test_folder_of_a_running_demo_is_refused(tmp_path):
    """Its checkpoints would be deleted under it."""
    with claimed(tmp_path), pytest.raises(SettingsError, match="demo is running"), claimed(tmp_path):
        pass


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_file_is_refused(tmp_path, place):
    """A file is no folder, and no folder lies in a file."""
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="--directory"), claimed(tmp_path / place):
        pass
