"""Create the folder of a demo, or empty it if an earlier demo created it. Nothing else is ever deleted."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.errors import SettingsError

MARK: Final = ".sidecar-demo"
"""The file that marks the folder as created by a demo. A running demo holds a lock on it."""

_MARK_TEXT: Final = "Made by `sidecar demo`, which replaces everything in this folder when it is run again.\n"
_CONTENTS: Final = frozenset(
    {MARK, "digits", "python", "data", "sidecar.toml", "logs", "unused", "checkpoints"}  # the last: of earlier versions
)


@dataclass(frozen=True, slots=True)
class Folder:
    """Hold the folder of a demo and its parts."""

    root: Path
    run: str = "digits"

    @property
    def checkpoints(self) -> Path:
        """Return the checkpoint directory, whose name is the run's. The daemons' state is below it, in `.sidecar`."""
        return self.root / self.run

    @property
    def settings(self) -> Path:
        """Return the file of the daemons' settings, for a demo that needs one."""
        return self.root / "sidecar.toml"

    @property
    def logs(self) -> Path:
        """Return the folder of logs, one file per process."""
        return self.root / "logs"


@contextmanager
def claimed(root: Path, run: str = "digits") -> Iterator[Folder]:
    """Yield an empty folder at `root`, locked against other demos.

    Raises `SettingsError` if `root` holds something that no demo created, if a demo is running there, or if it cannot
    be written.
    """
    root = root.expanduser().absolute()
    try:
        _check(root)
        root.mkdir(parents=True, exist_ok=True)
        mark = (root / MARK).open("a")
    except OSError as error:
        raise SettingsError(f"--directory {str(root)!r} cannot be used ({error.strerror}): name another") from error
    with mark:
        _lock(mark.fileno(), root)
        mark.truncate(0)
        mark.write(_MARK_TEXT)
        mark.flush()
        for name in _CONTENTS - {MARK}:
            _remove(root / name)
        folder = Folder(root, run)
        folder.checkpoints.mkdir()
        folder.logs.mkdir()
        yield folder


def _check(root: Path) -> None:
    """Raise `SettingsError` if using the folder would delete something that no demo created."""
    if not root.exists():
        return
    if not root.is_dir():
        raise SettingsError(f"--directory {str(root)!r} is a file: name a folder, or one that does not exist yet")
    names = {path.name for path in root.iterdir()}
    if names and MARK not in names:
        raise SettingsError(
            f"--directory {str(root)!r} holds something that no demo made: name an empty folder, or one that does not "
            "exist yet"
        )
    if strangers := sorted(names - _CONTENTS):
        raise SettingsError(
            f"--directory {str(root)!r} would be replaced, but somebody put {strangers[0]!r} there: move it away, or "
            "name another folder"
        )


def _lock(descriptor: int, root: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SettingsError(f"a demo is running in {str(root)!r}: stop it, or name another --directory") from None


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)
