"""Decide which folders are whole SavedModels."""

import errno
import os
import shutil

import pytest

from sidecar.errors import CorruptError


def test_folders_that_are_no_saved_model(checkpoint, root, new_catalog):
    """A marker that is a folder or a FIFO, variables that are a file or a link, a folder that nobody may enter."""
    checkpoint("export")
    (root / "m-5").rename(root / "good")
    for name, make in (
        ("folder", lambda path: path.mkdir()),
        ("fifo", os.mkfifo),
        ("loop", lambda path: path.symlink_to(path.name)),
    ):
        (root / name).mkdir()
        make(root / name / "saved_model.pb")
    for name in ("file", "link"):
        (root / name).mkdir()
        shutil.copy(root / "good" / "saved_model.pb", root / name)
    (root / "file" / "variables").write_text("")
    (root / "link" / "variables").symlink_to(root / "good" / "variables")
    (root / "whole_link").symlink_to("good")
    for name in ("x_temp", "tmp-1", "a.tmp1", "workertemp_1", ".hidden"):
        shutil.copytree(root / "good", root / name)
    scan = new_catalog(quiet_seconds=0).scan()
    assert [found.checkpoint.name for found in scan.found] == ["good"]
    assert sorted(name for name, _ in scan.waiting) == ["file", "link"]


@pytest.mark.parametrize("asset", [b"../../other.x", b"/etc/hostname", b"assets/words", b"words.tmp.tx\0"])
def test_assets_lie_in_their_folder(checkpoint, root, asset):
    """A marker that names an asset outside the folder assets/ is corrupt, and that asset is not opened."""
    format_, name, _ = checkpoint("saved_model_with_assets")
    marker = root / name / "saved_model.pb"
    content = marker.read_bytes()
    assert content.count(b"words.tmp.txt") > 0
    marker.write_bytes(content.replace(b"words.tmp.txt", asset.ljust(13, b"s")))
    with pytest.raises(CorruptError, match=r"asset .*assets/"):
        format_.inspect(root, name)


def test_assets_that_change(checkpoint, root, new_catalog):
    """Other words under the same marker are another checkpoint, which waits; a folder of them elsewhere is none."""
    format_, name, files = checkpoint("saved_model_with_assets")
    (found,) = new_catalog().scan().found
    (asset,) = [root / file for file in files if "/assets/" in file]
    asset.write_text(asset.read_text()[::-1])
    assert format_.inspect(root, name).digest != found.checkpoint.digest
    scan = new_catalog().scan()
    assert (scan.found, len(scan.waiting)) == ((), 1)
    asset.parent.rename(root / "elsewhere")
    asset.parent.symlink_to(root / "elsewhere")
    with pytest.raises(CorruptError, match="is a link"):
        format_.inspect(root, name)
    assert new_catalog(quiet_seconds=0).scan().found == ()


def test_a_folder_that_cannot_be_read(checkpoint, root, new_catalog, system_calls):
    """One that is somebody else's does not hide the others."""
    checkpoint("export")
    shutil.copytree(root / "m-5", root / "foreign")
    system_calls.refuse("scandir", errno.EACCES, lambda path: "foreign" in str(path))
    assert "m-5" in [found.checkpoint.name for found in new_catalog(quiet_seconds=0).scan().found]
