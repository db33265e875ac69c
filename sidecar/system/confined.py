"""Open folders that other users of the group may write to, component by component, never through a link.

This program deletes, renames and replaces files only inside the state directory, and only through this module. A name
is one path component and is looked up in a folder that is already open. A link that another user plants meanwhile is
refused (`ELOOP`, `ENOTDIR`), or the link itself is removed. Every call raises `OSError` with the path in it;
`sidecar.system.entry_errors` decides how the program reacts to an error. Standard library only.

    >>> with open_folder(Path("/data/ckpts/.sidecar/run")) as state, state.folder("pins") as pins:
    ...     pins.remove("ckpt-5@0123456789ab")
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Self

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_SYNC: Final = (errno.EINVAL, errno.ENOTSUP, errno.EROFS, errno.EBADF)
"""Errors of fsync on a folder where it is not needed: some network filesystems, and read-only mounts."""

DEEPEST: Final = 64
"""The most folders in each other that are entered: each holds a descriptor. This program nests few, others may not."""


class NotRegularError(OSError):
    """Report a link, folder, FIFO, socket or device where a regular file is expected."""


def open_folder(path: Path) -> "Folder":
    """Open a folder whose path is trusted because a setting names it: links in that path are followed."""
    return Folder(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)


@dataclass(frozen=True, slots=True)
class Folder:
    """Represent an open folder, which `with` closes. `path` is for messages only: every call uses the descriptor."""

    descriptor: int
    path: Path

    def __enter__(self) -> Self:
        """Return the folder, which is open already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the folder."""
        os.close(self.descriptor)

    def folder(self, name: str, *, make: bool = False) -> "Folder":
        """Open a sub-folder; `a/b` is opened through `a`.

        `make` creates missing folders. Each new name is durable before the next one is created below it.
        """
        first, nested, below = name.partition("/")
        with self._with_path(first):
            try:
                descriptor = self._open(first)
            except FileNotFoundError:
                if not make:
                    raise
                with contextlib.suppress(FileExistsError):  # another process made it, perhaps without making it durable
                    os.mkdir(_component(first), dir_fd=self.descriptor)
                self.sync()
                descriptor = self._open(first)
        opened = Folder(descriptor, self.path / first)
        if not nested:
            return opened
        with opened:
            return opened.folder(below, make=make)

    def _open(self, name: str) -> int:
        """Return the descriptor of a sub-folder. Raises OSError with ELOOP for a link."""
        try:
            return os.open(_component(name), _FOLDER, dir_fd=self.descriptor)
        except NotADirectoryError as error:  # Linux raises this for a link, too
            if stat.S_ISLNK(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, "it is a link, and links are not followed here") from error
            raise

    def names(self) -> list[str]:
        """Return the names in the folder, sorted; on network filesystems a listing may be out of date."""
        with self._with_path(""), os.scandir(self.descriptor) as entries:
            return sorted(entry.name for entry in entries)

    def stat(self, name: str) -> os.stat_result:
        """Return the status of the entry with this name; a link is not followed."""
        with self._with_path(name):
            return os.stat(_component(name), dir_fd=self.descriptor, follow_symlinks=False)

    @contextlib.contextmanager
    def open_file(self, name: str) -> Iterator[BinaryIO]:
        """Open a regular file for reading, unbuffered; raises `NotRegularError` for anything else, and never waits."""
        with self._with_path(name):
            descriptor = self._open_regular(name, os.O_RDONLY)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                yield file

    def read(self, name: str, limit: int) -> bytes:
        """Return the content of a regular file, at most `limit` + 1 bytes: the caller refuses more than `limit`."""
        with self.open_file(name) as file:
            return read_from(file, limit)

    @contextlib.contextmanager
    def create_file(self, name: str) -> Iterator[BinaryIO]:
        """Create a regular file for writing; raises `FileExistsError` if the name is taken."""
        with self._with_path(name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(_component(name), flags, 0o666, dir_fd=self.descriptor)
            with os.fdopen(descriptor, "wb") as file:
                yield file

    @contextlib.contextmanager
    def append_to_file(self, name: str) -> Iterator[BinaryIO]:
        """Open a regular file for reading and for writing at its end, unbuffered; create it if it is missing.

        Raises `NotRegularError` for anything else, and for a file with other names, and never waits.
        """
        with self._with_path(name):
            descriptor = self._open_regular(name, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                if os.fstat(descriptor).st_nlink != 1:
                    raise NotRegularError(errno.EMLINK, "it has another name, so it may be somebody else's file")
                yield file

    def _open_regular(self, name: str, flags: int) -> int:
        """Return the descriptor of a regular file; raise `NotRegularError` for anything else, and never wait."""
        try:
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(_component(name), flags, 0o666, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotRegularError(error.errno, "it is a link, not a regular file") from error
            if error.errno in (errno.ENXIO, errno.ENODEV):
                raise NotRegularError(error.errno, "it is not a regular file") from error
            raise
        try:
            _reject_irregular(os.fstat(descriptor).st_mode)
        except OSError:
            os.close(descriptor)  # Python itself refuses to make a file object of a folder
            raise
        return descriptor

    def make_folder(self, name: str) -> None:
        """Create a sub-folder; raises `FileExistsError` if the name is taken."""
        with self._with_path(name):
            os.mkdir(_component(name), dir_fd=self.descriptor)

    def link(self, name: str, new: str, into: "Folder | None" = None) -> None:
        """Give a file another name, here or in another folder; raises `FileExistsError` if that name is taken."""
        with self._with_path(new):
            os.link(
                _component(name),
                _component(new),
                src_dir_fd=self.descriptor,
                dst_dir_fd=(into or self).descriptor,
                follow_symlinks=False,
            )

    def rename(self, name: str, new: str, into: "Folder | None" = None) -> None:
        """Rename an entry, here or into another folder. A file with the new name is replaced.

        A non-empty folder with the new name is an error.
        """
        with self._with_path(name):
            target = (into or self).descriptor
            os.rename(_component(name), _component(new), src_dir_fd=self.descriptor, dst_dir_fd=target)

    def symlink(self, name: str, target: str) -> None:
        """Create a symbolic link to another entry of the folder; raises `FileExistsError` if the name is taken."""
        with self._with_path(name):
            os.symlink(_component(target), _component(name), dir_fd=self.descriptor)

    def readlink(self, name: str) -> str:
        """Return the target of a symbolic link, which is not trusted; raises `OSError` if it is something else."""
        with self._with_path(name):
            return os.readlink(_component(name), dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file, or a link itself."""
        with self._with_path(name):
            os.unlink(_component(name), dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove an entry and everything below it; links are removed, never followed.

        An entry that is already gone is not an error. Removal continues past entries that cannot be removed; the first
        such error is raised at the end.
        """
        errors: list[OSError] = []
        _remove(self, name, errors, DEEPEST)
        if errors:
            raise errors[0]

    def remove_folder(self, name: str) -> None:
        """Remove an empty sub-folder."""
        with self._with_path(name):
            os.rmdir(_component(name), dir_fd=self.descriptor)

    def sync(self) -> None:
        """Make the names in the folder durable; a filesystem without fsync for folders does not need it."""
        with self._with_path(""):
            try:
                os.fsync(self.descriptor)
            except OSError as error:
                if error.errno not in _NO_SYNC:
                    raise

    def _with_path(self, name: str) -> "_PathInErrors":
        """Put the whole path into an error: a name alone does not show which folder is meant."""
        return _PathInErrors(self.path, name)


@dataclass(slots=True)
class _PathInErrors:
    """Put a path into each error that leaves the block. A generator would take longer than the block itself."""

    folder: Path
    name: str

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Name the path unless the error has a whole one."""
        if isinstance(error, OSError) and not (
            error.filename is not None and Path(os.fsdecode(error.filename)).is_absolute()
        ):
            error.filename = str(self.folder / self.name)


def read_from(file: BinaryIO, limit: int) -> bytes:
    """Return the rest of an open file, at most `limit` + 1 bytes."""
    parts, remaining = [], limit + 1
    while remaining > 0 and (part := file.read(min(remaining, 1 << 20))):
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)


def _remove(folder: Folder, name: str, errors: list[OSError], deepest: int) -> None:
    """Remove an entry and everything below it, as `Folder.remove`, and append each error to `errors`."""
    try:
        try:
            folder.unlink(name)
        except (IsADirectoryError, PermissionError) as refused:  # systems raise one or the other for a folder
            if not stat.S_ISDIR(folder.stat(name).st_mode):
                raise
            if deepest == 0:
                message = f"more than {DEEPEST} folders are nested"
                raise OSError(errno.ELOOP, message, str(folder.path / name)) from refused
            with folder.folder(name) as below:
                for entry in below.names():
                    _remove(below, entry, errors, deepest - 1)
            folder.remove_folder(name)
    except FileNotFoundError:
        return
    except OSError as error:
        errors.append(error)


def _reject_irregular(mode: int) -> None:
    """Raise `NotRegularError` unless the mode is that of a regular file."""
    if stat.S_ISDIR(mode):
        raise NotRegularError(errno.EISDIR, "it is a folder, not a regular file")
    if not stat.S_ISREG(mode):
        kind = "FIFO" if stat.S_ISFIFO(mode) else "device"
        raise NotRegularError(errno.EINVAL, f"it is a {kind}, not a regular file")


def _component(name: str) -> str:
    """Return the name if it is a single path component: names that come from records are not trusted."""
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        encoded = b""
    if encoded in (b"", b".", b"..") or b"/" in encoded or b"\0" in encoded:
        raise OSError(errno.EINVAL, "it is not the name of a file", name)
    return name
