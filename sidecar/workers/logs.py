"""Hold the logs of worker processes: in a folder that no other user can prepare, bounded in number and in bytes.

The default folder lies in the system's temporary one, where every user may make names. So its part below that is opened
one folder after the other, without following links, and each must belong to this user alone. A log is made new, never
opened under a name that is there already, and is used by its descriptor from then on.
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
"""A longer log is cut. 20 of these, and those of living workers, fit a /tmp of 256 MB, as containers have."""

LOGS_KEPT: Final = 20
"""Logs of a node's workers that ended: the last days of a bad week, not the disk."""

_HEAD_BYTES: Final = 2 * 1024 * 1024  # how it began: versions, devices, the first warnings
_TAIL_BYTES: Final = 2 * 1024 * 1024  # and how it ended
_TOLD_BYTES: Final = 4000  # of the end, in the message of a worker's loss
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class WorkerLog:
    """The log of one worker process, which appends to it; this side reads it and keeps it short."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._cut = 0

    @classmethod
    def create(cls, path: Path) -> "WorkerLog":
        """Make the log, and its folder if need be. Raises `OSError`, also for a name that is taken."""
        folder = open_log_folder(path.parent)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return cls(path, os.open(path.name, flags, 0o666, dir_fd=folder))  # the umask decides who may read it
        finally:
            os.close(folder)

    def appending(self) -> int:
        """Return another descriptor of it, at whose end everything is written."""
        return os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def tail(self) -> str:
        """Return its end; empty if the disk does not give it."""
        try:
            start = max(0, os.fstat(self._descriptor).st_size - _TOLD_BYTES)
            return os.pread(self._descriptor, _TOLD_BYTES, start).decode(errors="replace").strip()
        except OSError:
            return ""

    def limit(self) -> bool:
        """Cut the middle out if it is too long, and return whether it was.

        Lines that are written in the same millisecond may go with it.
        """
        size = os.fstat(self._descriptor).st_size
        if size <= LOG_BYTES:
            return False
        end = os.pread(self._descriptor, _TAIL_BYTES, size - _TAIL_BYTES)
        end = end[end.find(b"\n") + 1 :]
        self._cut += size - _HEAD_BYTES - len(end)
        line = f"\n[{self._cut} bytes were cut here: the log of a worker may have {LOG_BYTES}]\n".encode()
        written = os.pwrite(self._descriptor, line + end, _HEAD_BYTES)
        os.ftruncate(self._descriptor, _HEAD_BYTES + written)
        return True

    def close(self) -> None:
        """Let go of it; the file stays."""
        os.close(self._descriptor)


def usable_log_folder(wanted: Path) -> tuple[Path, str | None]:
    """Return the folder for logs: `wanted`, or a private one where somebody else prepared that; and why, then.

    Raises `SettingsError` if neither can be used.
    """
    reason = _why_not(wanted)
    if reason is None:
        return wanted, None
    instead = None
    if _is_shared(wanted):
        with contextlib.suppress(OSError):
            instead = _own_temporary_folder() / wanted.name
    if instead is None or _why_not(instead) is not None:
        raise SettingsError(f"logs of worker processes cannot be written: {reason}; name another folder: worker_logs")
    return instead, f"{reason}, so logs of worker processes go to {instead}; worker_logs names another folder"


def open_log_folder(folder: Path) -> int:
    """Open the folder, made if need be. Raises `OSError`, `PermissionError` where others could have prepared it."""
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
    """Remove old logs of this node; those of others that share the folder are theirs. Raises `OSError`."""
    node = log.stem.rsplit(".", 2)[0]
    written: dict[str, float] = {}
    folder = open_log_folder(log.parent)
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - of a descriptor
            stem = name.removesuffix(".log")
            if name in (log.name, stem) or stem in keep or stem.rsplit(".", 2)[0] != node:
                continue
            with contextlib.suppress(FileNotFoundError):
                written[name] = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
        for name in sorted(written, key=lambda each: written[each], reverse=True)[LOGS_KEPT:]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)


def _open_own(name: str, path: Path, parent: int) -> int:
    """Open a folder that belongs to this user alone, made if it is missing. A link is not followed."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    try:
        found = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
    try:
        status = os.fstat(found)
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "Belongs to another user", str(path))  # noqa: TRY301 - as open does
        if status.st_mode & _OTHERS_MAY_WRITE:
            os.fchmod(found, 0o700)
    except BaseException:
        os.close(found)
        raise
    return found


def _is_shared(folder: Path) -> bool:
    """Whether it lies in a folder of this user's in the system's temporary one."""
    temporary, own = Path(tempfile.gettempdir()), f"sidecar-{os.getuid()}"
    if not folder.is_relative_to(temporary):
        return False
    below = folder.relative_to(temporary).parts
    return bool(below) and (below[0] == own or below[0].startswith(f"{own}-"))


def _own_temporary_folder() -> Path:
    """Return a folder whose name nobody could foresee: the one of an earlier start, if there is one."""
    temporary, prefix = Path(tempfile.gettempdir()), f"sidecar-{os.getuid()}-"
    for each in sorted(temporary.glob(f"{prefix}*")):
        if _why_not(each) is None:
            return each
    return Path(tempfile.mkdtemp(prefix=prefix, dir=temporary))


def _why_not(folder: Path) -> str | None:
    try:
        os.close(open_log_folder(folder))
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}"
    return None
