"""Give this process a folder of its own in the checkpoint directory, for links to checkpoints that must not vanish.

Links are possible only within one filesystem, so the folder lies where training saves. It is hidden, and no scan looks
into it. A process that is killed leaves it behind, and the next evaluator of the same directory removes it.
"""

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sidecar.system.confined import Folder, open_folder

FOLDER: Final = ".sidecar-evaluator"
"""The folder in a checkpoint directory that holds the folders of all processes."""

_NAME: Final = re.compile(r"(?P<host>.+)-(?P<process>[0-9]+)-[0-9a-f]{8}")
_ABANDONED_SECONDS: Final = 24 * 3600.0  # a process touches its folder with each scan


class PrivateFolder:
    """Represent the folder of this process, which `make` creates."""

    def __init__(self, directory: Path) -> None:
        self._all = directory / FOLDER
        self._host = _name_of_host()
        self.path = self._all / f"{self._host}-{os.getpid()}-{secrets.token_hex(4)}"

    def make(self) -> None:
        """Create the folder if it is missing. Raises OSError, also if a link has its name."""
        with open_folder(self._all.parent) as directory, directory.folder(f"{FOLDER}/{self.path.name}", make=True):
            pass

    def touch(self) -> None:
        """Show that this process lives."""
        with contextlib.suppress(OSError):
            os.utime(self.path)

    def remove(self) -> None:
        """Remove the folder, and the one around it if no other process has one. A later process removes the rest."""
        with contextlib.suppress(OSError), self._opened() as folder:
            folder.remove(self.path.name)
        with contextlib.suppress(OSError), open_folder(self._all.parent) as directory:
            directory.remove_folder(FOLDER)

    def remove_abandoned(self, now: float) -> None:
        """Remove the folders of processes that were killed. `now`: seconds since 1970."""
        with contextlib.suppress(OSError), self._opened() as folder:
            for name in folder.names():
                with contextlib.suppress(OSError):
                    if self._is_abandoned(name, folder, now):
                        folder.remove(name)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Folder]:
        """Open the folder of all processes. Raises OSError, also if it is a link."""
        with open_folder(self._all.parent) as directory, directory.folder(FOLDER) as folder:
            yield folder

    def _is_abandoned(self, name: str, folder: Folder, now: float) -> bool:
        """Return whether the process of a folder is gone: known on this host, and elsewhere after a day of silence."""
        match = _NAME.fullmatch(name)
        if match is None:
            return False
        if match["host"] == self._host and not Path("/proc", match["process"]).exists():
            return True
        return now - folder.stat(name).st_mtime > _ABANDONED_SECONDS


def _name_of_host() -> str:
    """Return a name within which process numbers are unique: containers may share the name of their host."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return f"{re.sub(r'[^a-zA-Z0-9.]', '_', socket.gethostname())}_{namespace}"
