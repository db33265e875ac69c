"""Store the logs of worker processes in a folder that no other user can prepare, limited in number and in bytes.

The default folder lies in the system's temporary folder, where every user may create names. The path below that is
therefore opened one component at a time, without following links, and each folder must belong to this user alone. A
log is always a new file, never an existing one, and is used through its descriptor from then on.
"""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

from sidecar.errors import SettingsError

LOG_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of a log; a longer one is cut. 20 of these and the logs of running workers fit a /tmp of 256 MB."""

LOGS_KEPT: Final = 20
"""The number of logs of ended workers that a node retains: enough to diagnose repeated failures."""

_HEAD_BYTES: Final = 2 * 1024 * 1024  # the beginning has versions, devices and the first warnings
_TAIL_BYTES: Final = 2 * 1024 * 1024  # the end has the reason for a failure
_REPORTED_BYTES: Final = 4000  # length of the tail in the message about a lost worker
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class WorkerLog:
    """Read and shorten the log of one worker process; the worker appends to it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._cut = 0

    @classmethod
    def create(cls, path: Path) -> "WorkerLog":
        """Create the log, and its folder if that is missing. Raises `OSError`, also if the name is taken."""
        folder = open_log_folder(path.parent)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return cls(path, os.open(path.name, flags, 0o666, dir_fd=folder))  # the umask decides who may read the log
        finally:
            os.close(folder)

    def move(self, path: Path) -> None:
        """Give the log another name, perhaps in another folder. Raises `OSError`, also on another filesystem."""
        before = open_log_folder(self.path.parent)
        try:
            after = open_log_folder(path.parent)
            try:
                os.rename(self.path.name, path.name, src_dir_fd=before, dst_dir_fd=after)
            finally:
                os.close(after)
        finally:
            os.close(before)
        self.path = path

    def appending(self) -> int:
        """Return a new descriptor of the log, on which each write appends."""
        return os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def tail(self) -> str:
        """Return the last part of the log; empty if it cannot be read."""
        try:
            start = max(0, os.fstat(self._descriptor).st_size - _REPORTED_BYTES)
            return os.pread(self._descriptor, _REPORTED_BYTES, start).decode(errors="replace").strip()
        except OSError:
            return ""

    def limit(self) -> bool:
        """Remove the middle of the log if it is too long, and return whether it was.

        What the worker appends meanwhile is kept: it may be the reason for a failure. Only a line that is written
        between the last two calls below can be lost.
        """
        size = os.fstat(self._descriptor).st_size
        if size <= LOG_BYTES:
            return False
        end = os.pread(self._descriptor, _TAIL_BYTES, size - _TAIL_BYTES)
        end = end[end.find(b"\n") + 1 :]
        self._cut += size - _HEAD_BYTES - len(end)
        line = f"\n[{self._cut} bytes were cut here: the log of a worker may have {LOG_BYTES}]\n".encode()
        kept = _HEAD_BYTES + os.pwrite(self._descriptor, line + end, _HEAD_BYTES)
        while kept < LOG_BYTES and (appended := os.pread(self._descriptor, _TAIL_BYTES, size)):
            kept += os.pwrite(self._descriptor, appended, kept)
            size += len(appended)
        os.ftruncate(self._descriptor, kept)
        return True

    def close(self) -> None:
        """Close the descriptor; the file stays."""
        os.close(self._descriptor)


def usable_log_folder(wanted: Path) -> tuple[Path, str | None]:
    """Return the folder for logs and, if it is not `wanted`, the reason.

    A private temporary folder replaces `wanted` if that lies in the temporary folder and cannot be used.

    Raises `SettingsError` if neither can be used.
    """
    reason = _why_not(wanted)
    if reason is None:
        return wanted, None
    replacement = None
    if _is_shared(wanted):
        with contextlib.suppress(OSError):
            replacement = _own_temporary_folder() / wanted.name
    if replacement is None or _why_not(replacement) is not None:
        raise SettingsError(f"logs of worker processes cannot be written: {reason}; name another folder: worker_logs")
    return replacement, f"{reason}, so logs of worker processes go to {replacement}; worker_logs names another folder"


def open_log_folder(folder: Path) -> int:
    """Open the folder and create it if it is missing.

    Raises `OSError`, in particular `PermissionError` if another user could have prepared the folder.
    """
    if not _is_shared(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(folder, _FOLDER)
    temporary = Path(tempfile.gettempdir())
    opened = os.open(temporary, _FOLDER)
    path = temporary
    for part in folder.relative_to(temporary).parts:
        path /= part
        try:
            inner = _open_own(part, path, opened)
        finally:
            os.close(opened)
        opened = inner
    return opened


def remove_old_logs(log: Path, keep: Collection[str]) -> None:
    """Remove old logs of this node, but not logs of other nodes in the same folder. Raises `OSError`.

    `log`: a log of this node. `keep`: the ids of workers whose logs stay.
    """
    node = log.stem.rsplit(".", 2)[0]
    written: dict[str, float] = {}
    folder = open_log_folder(log.parent)
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - pathlib cannot list a descriptor
            stem = name.removesuffix(".log")
            if name in (log.name, stem) or stem in keep or stem.rsplit(".", 2)[0] != node:
                continue
            with contextlib.suppress(FileNotFoundError):
                written[name] = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
        for name in sorted(written, key=lambda log_name: written[log_name], reverse=True)[LOGS_KEPT:]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)


def _open_own(name: str, path: Path, parent: int) -> int:
    """Open a folder that belongs to this user alone; create it if it is missing. A link is not followed."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    try:
        descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "Belongs to another user", str(path))  # noqa: TRY301 - as open does
        if status.st_mode & _OTHERS_MAY_WRITE:
            os.fchmod(descriptor, 0o700)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_shared(folder: Path) -> bool:
    """Return whether the folder lies below this user's folder in the system's temporary folder."""
    temporary, prefix = Path(tempfile.gettempdir()), f"sidecar-{os.getuid()}"
    if not folder.is_relative_to(temporary):
        return False
    below = folder.relative_to(temporary).parts
    return bool(below) and (below[0] == prefix or below[0].startswith(f"{prefix}-"))


def _own_temporary_folder() -> Path:
    """Return a folder with an unpredictable name, if possible the one of an earlier start."""
    temporary, prefix = Path(tempfile.gettempdir()), f"sidecar-{os.getuid()}-"
    for folder in sorted(temporary.glob(f"{prefix}*")):
        if _why_not(folder) is None:
            return folder
    return Path(tempfile.mkdtemp(prefix=prefix, dir=temporary))


def _why_not(folder: Path) -> str | None:
    """Return why a folder cannot be used for logs; None if it can."""
    try:
        os.close(open_log_folder(folder))
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}"
    return None
