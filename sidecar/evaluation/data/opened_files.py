"""Notice that a file from which the task's data were read has another content now. Imports no framework.

Python tells an audit hook of each file that it opens (docs.python.org/3/library/audit_events.html). So the files
of any source become known: of `numpy.load`, of `sidecar.data.npz`, and of images that a dataset opens. Libraries that
open files without Python are not seen; a source that knows its files raises the event `DATA_FILE` for each of them.
"""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from sidecar.evaluation.file_version import FileVersion

DATA_FILE: Final = "sidecar.data_file"
"""The audit event of a source that opens a file without Python. Its argument is the path."""

_MOST_FILES: Final = 4096
"""The most files that are looked at before each evaluation: 10 ms on a local disk."""

_MOST_USELESS: Final = 3
"""How often a file may change without a change of the data, until it is not looked at any more: a log file, say."""

_CODE: Final = (".py", ".pyc", ".so")
_KERNEL: Final = ("/proc/", "/sys/", "/dev/")


class OpenedFiles:
    """Know the files that were opened for reading while data were read, and compare them later.

    It sees nothing before `install`, which adds an audit hook for the rest of the process.
    """

    def __init__(self) -> None:
        self._versions: dict[str, FileVersion] = {}
        self._useless: dict[str, int] = {}
        self._is_reading = False
        self._excluded: tuple[str, ...] = ()

    def install(self) -> None:
        """Begin to see which files this process opens."""
        sys.addaudithook(self._hear)

    @contextmanager
    def reading(self, *excluded: str) -> Iterator[None]:
        """Note the files that are opened meanwhile, except for those whose paths begin with one of these."""
        self._excluded = tuple(os.path.abspath(path) for path in excluded if path)  # noqa: PTH100 - links are not followed
        self._is_reading = True
        try:
            yield
        finally:
            self._is_reading = False

    def changed(self) -> list[str]:
        """Return the files that have another content than when they were opened first. A file that is gone has not.

        Size, time, inode and device are compared, without reading any file.
        """
        return [path for path, version in self._versions.items() if _version(path) not in (version, None)]

    def forget(self) -> None:
        """Forget all files, because the data are read anew."""
        self._versions.clear()

    def count_useless(self, paths: list[str]) -> None:
        """Note that these files changed, and the data did not."""
        for path in paths:
            self._useless[path] = self._useless.get(path, 0) + 1
            if self._useless[path] >= _MOST_USELESS:
                self._versions.pop(path, None)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note a file that is opened for reading. An error here would be raised by the user's `open`."""
        if not self._is_reading or event not in ("open", DATA_FILE):
            return
        with suppress(OSError, ValueError, TypeError):
            if event == DATA_FILE or arguments[2] & os.O_ACCMODE == os.O_RDONLY:
                self._note(arguments[0])

    def _note(self, name: Any) -> None:
        if not isinstance(name, str | bytes) or len(self._versions) >= _MOST_FILES:
            return
        path = os.path.abspath(os.fsdecode(name))  # noqa: PTH100 - links are not followed
        if path in self._versions or path.endswith(_CODE) or path.startswith(_KERNEL):
            return
        if path.startswith(self._excluded) or self._useless.get(path, 0) >= _MOST_USELESS:
            return
        if (version := _version(path)) is not None:
            self._versions[path] = version


def _version(path: str) -> FileVersion | None:
    """Return what changes with the content of a file; None if it is not a file, or gone."""
    try:
        status = os.stat(path)  # noqa: PTH116 - once for each of thousands of files
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileVersion.of(status)
