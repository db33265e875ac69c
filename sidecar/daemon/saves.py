"""What workers saved of their evaluations, on disk: removes what is no longer kept, measures what is."""

import contextlib
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.daemon.retention import Tidying
from sidecar.errors import RecordError

_STATES: Final = "states.json"  # what a worker found: small, and kept for ever


@dataclass(frozen=True, slots=True)
class Saves:
    """The folder `evaluations` of a run."""

    root: Path  # the run's state directory

    def tidy(self, tidying: Tidying) -> dict[str, int]:
        """Remove what failed plans left, and what is no longer kept; returns the bytes of what is to be measured.

        Metric states stay for ever. What cannot be removed stays, too: nothing waits for it. Raises `RecordError` for a
        folder that is not inside the state directory.
        """
        for folder in tidying.drop:
            shutil.rmtree(self._inside(folder), ignore_errors=True)
        for folder in tidying.thin:
            for path in self._inside(folder).glob("worker-*/*"):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name != _STATES:
                    with contextlib.suppress(OSError):
                        path.unlink()
        return {folder: _bytes_below(self._inside(folder)) for folder in tidying.measure}

    def _inside(self, folder: str) -> Path:
        """A folder of the state directory; a record that points out of it is refused."""
        path = (self.root / folder).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise RecordError(f"{folder!r} leaves the state directory")
        return path


def _bytes_below(folder: Path) -> int:
    size = 0
    for path in folder.glob("worker-*/**/*"):
        with contextlib.suppress(FileNotFoundError):  # another node tidies, too
            found = path.stat(follow_symlinks=False)
            size += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return size
