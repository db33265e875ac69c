"""Other users of the same group, and what they plant in folders that the group may write to."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

VICTIM, MALLORY, GROUP = 54321, 54322, 54320

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")


@contextlib.contextmanager
def acting_as(uid: int, umask: int = 0o002) -> Iterator[None]:
    """Reach files as this user of the group does: without any right of root."""
    groups, mask = os.getgroups(), os.umask(umask)
    os.setgroups([])
    os.setegid(GROUP)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.umask(mask)


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that belongs to the victim, and that the group may write to; others may look."""
    folder = Path(tempfile.mkdtemp(prefix="sidecar-shared-"))
    try:
        os.chown(folder, VICTIM, GROUP)
        folder.chmod(0o2775)
        yield folder
    finally:
        shutil.rmtree(folder)


def private_folder(root: Path) -> Path:
    """The victim's own folder, with files that nobody else may touch."""
    with acting_as(VICTIM, 0o077):
        folder = root / "private"
        for name in ("thesis/chapter-1", "states", "n1.json"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("mine")
    return folder


def is_untouched(folder: Path) -> bool:
    """Return whether nothing of the victim's own folder was changed, and nothing was added."""
    files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    return files == dict.fromkeys(("thesis/chapter-1", "states", "n1.json"), "mine")
