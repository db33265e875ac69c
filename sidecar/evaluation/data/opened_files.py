"""Notice that a file from which the task's data were read has another content now. Imports no framework.

Python tells an audit hook of each file that it opens (docs.python.org/3/library/audit_events.html). So the files
of any source become known: of `numpy.load`, of `sidecar.data.npz`, and of images that a dataset opens. It tells of
folders that are listed, too, so that a file that comes or goes is noticed. Libraries that open files without Python are
not seen; a source that knows its files raises the event `DATA_FILE` for each of them.
"""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DATA_FILE: Final = "sidecar.data_file"
"""The audit event of a source that opens a file without Python. Its argument is the path."""

_MOST_FILES: Final = 4096
"""The most files that are looked at before each evaluation: 10 ms on a local disk."""

_MOST_USELESS: Final = 3
"""How often a file may change without a change of the data, until it is not looked at any more: a log file, say."""

_FILES: Final = (DATA_FILE, "sqlite3.connect")
_FOLDERS: Final = ("os.listdir", "os.scandir")
_EVENTS: Final = frozenset(("open", *_FILES, *_FOLDERS))

_CODE: Final = (".py", ".pyc", ".so")
_KERNEL: Final = ("/proc/", "/sys/", "/dev/")
_MEMORY: Final = "/dev/shm/"  # noqa: S108 - no file is made there; people keep data sets in it


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The properties of a file that change with its content.

    A file system may count time coarsely: a second change of the same size within one of its ticks, in the same inode,
    is not seen.
    """

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileVersion":
        """Take the properties from what `os.stat` returned."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class OpenedFiles:
    """Know the files that were opened for reading while data were read, and compare them later.

    It sees nothing before `install`, which adds an audit hook for the rest of the process.
    """

    def __init__(self) -> None:
        self._versions: dict[str, _Seen] = {}
        self._useless: dict[str, int] = {}
        self._is_reading = False
        self._excluded: tuple[str, ...] = ()

    def install(self) -> None:
        """Begin to see which files this process opens."""
        sys.addaudithook(self.hear)

    @contextmanager
    def reading(self, *excluded: str) -> Iterator[None]:
        """Note the files that are opened meanwhile, except for those whose paths begin with one of these."""
        self._excluded = tuple(os.path.abspath(path) for path in excluded if path)  # noqa: PTH100 - links are not followed
        self._is_reading = True
        try:
            yield
        finally:
            self._is_reading = False

    def changed(self, *moving: str) -> list[str]:
        """Return the files and folders that have another content than when they were opened first.

        A file that is gone has not. Size, times, inode and device are compared, without reading any file. `moving`: the
        paths of files that come and go, such as checkpoints, so that the folders above them say nothing.
        """
        above = {str(parent) for path in moving for parent in Path(path).parents}
        return [
            path
            for path, version in self._versions.items()
            if path not in above and _version(path) not in (version, None)
        ]

    def forget(self) -> None:
        """Forget all files, because the data are read anew."""
        self._versions.clear()

    def count_useless(self, paths: list[str]) -> None:
        """Note that these files changed, and the data did not."""
        for path in paths:
            self._useless[path] = self._useless.get(path, 0) + 1
            if self._useless[path] >= _MOST_USELESS:
                self._versions.pop(path, None)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note a file that is opened for reading. An error here would be raised by the user's `open`."""
        if not self._is_reading or event not in _EVENTS:
            return
        with suppress(OSError, ValueError, TypeError):
            if event in _FOLDERS:
                self._note_folder(arguments[0])
            elif event in _FILES or arguments[2] & os.O_ACCMODE == os.O_RDONLY:
                self._note(arguments[0])

    def _note_folder(self, name: Any) -> None:
        """Note a folder that is listed, unless the search for modules lists it."""
        path = os.path.abspath(os.fsdecode(name or "."))  # noqa: PTH100 - links are not followed
        if path not in sys.path and not path.startswith((sys.prefix, sys.base_prefix)):
            self._note(path, stat.S_IFDIR)

    def _note(self, name: Any, kind: int = stat.S_IFREG) -> None:
        if isinstance(name, int) or len(self._versions) >= _MOST_FILES:
            return
        path = os.path.abspath(os.fsdecode(name))  # noqa: PTH100 - links are not followed
        if path in self._versions or path.endswith(_CODE):
            return
        if path.startswith(_KERNEL) and not path.startswith(_MEMORY):
            return
        if path.startswith(self._excluded) or self._useless.get(path, 0) >= _MOST_USELESS:
            return
        if (version := _version(path)) is not None and version.kind == kind:
            self._versions[path] = version


@dataclass(frozen=True, slots=True)
class _Seen:
    """Hold the version of a file or folder, and the time of the last change of its status, which nobody can set."""

    version: FileVersion
    changed_ns: int
    kind: int


def _version(path: str) -> _Seen | None:
    """Return what changes with the content of a file or folder; None if it is neither, or gone."""
    try:
        status = os.stat(path)  # noqa: PTH116 - once for each of thousands of files
    except OSError:
        return None
    kind = stat.S_IFMT(status.st_mode)
    return _Seen(FileVersion.of(status), status.st_ctime_ns, kind) if kind in (stat.S_IFREG, stat.S_IFDIR) else None
