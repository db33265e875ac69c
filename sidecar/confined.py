"""Folders that other users of the group may write to: opened component by component, never through a link.

The state directory, and what lies in it, is the only place where this program deletes, renames and replaces; it does
so only here. A name is one component, and is looked up in a folder that is open already, so a link that is planted
meanwhile leads nowhere: it is refused (`ELOOP`, `ENOTDIR`), or it is itself what is removed. Every call raises
`OSError` with the path in it; what an error means for whom is said by `sidecar.entry_errors`. Standard library only.

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
from typing import BinaryIO, Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_SYNC: Final = (errno.EINVAL, errno.ENOTSUP, errno.EROFS, errno.EBADF)
"""What fsync of a folder says where it is not needed: some network filesystems, and mounts that are read-only."""


_DEEPEST: Final = 64
"""Levels of folders that are removed: each holds a descriptor, and nothing that this program writes has so many."""


class NotRegularError(OSError):
    """A link, folder, FIFO, socket or device stands where a regular file is expected."""


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator["Folder"]:
    """Open a folder whose own path is trusted, as a setting names it: links in that path are followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Folder(descriptor, path)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Folder:
    """An open folder. `path` is for messages only: every call uses the descriptor."""

    descriptor: int
    path: Path

    @contextlib.contextmanager
    def folder(self, name: str, *, make: bool = False) -> Iterator["Folder"]:
        """Open a sub-folder, `a/b` by `a` first; `make` creates what is missing, each name durable before the next."""
        with contextlib.ExitStack() as stack:
            found = self
            for part in name.split("/"):
                found = stack.enter_context(found._folder(part, make=make))
            yield found

    @contextlib.contextmanager
    def _folder(self, name: str, *, make: bool) -> Iterator["Folder"]:
        with self._telling(name):
            try:
                descriptor = self._opened(name)
            except FileNotFoundError:
                if not make:
                    raise
                with contextlib.suppress(FileExistsError):  # whoever made it may not have made it durable yet
                    os.mkdir(_one(name), dir_fd=self.descriptor)
                self.sync()
                descriptor = self._opened(name)
        try:
            yield Folder(descriptor, self.path / name)
        finally:
            os.close(descriptor)

    def _opened(self, name: str) -> int:
        try:
            return os.open(_one(name), _FOLDER, dir_fd=self.descriptor)
        except NotADirectoryError as error:  # Linux says so of a link, too
            if stat.S_ISLNK(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, "it is a link, and links are not followed here") from error
            raise

    def names(self) -> list[str]:
        """Return the names in it, sorted; a listing may lag behind on network filesystems."""
        with self._telling(""), os.scandir(self.descriptor) as entries:
            return sorted(entry.name for entry in entries)

    def stat(self, name: str) -> os.stat_result:
        """Return what stands under a name; a link is not followed."""
        with self._telling(name):
            return os.stat(_one(name), dir_fd=self.descriptor, follow_symlinks=False)

    @contextlib.contextmanager
    def open_file(self, name: str) -> Iterator[BinaryIO]:
        """Open a regular file for reading, unbuffered; raises `NotRegularError` for anything else, and never waits."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._telling(name):
            try:
                descriptor = os.open(_one(name), flags, dir_fd=self.descriptor)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise NotRegularError(error.errno, "it is a link, not a regular file") from error
                if error.errno in (errno.ENXIO, errno.ENODEV):
                    raise NotRegularError(error.errno, "it is not a regular file") from error
                raise
            try:
                _reject_other(os.fstat(descriptor).st_mode)
            except OSError:
                os.close(descriptor)  # Python itself refuses to make a file object of a folder
                raise
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                yield file

    def read(self, name: str, limit: int) -> bytes:
        """Return all of a regular file, at most `limit` + 1 bytes: the caller refuses what is longer than `limit`."""
        with self.open_file(name) as file:
            return read_from(file, limit)

    @contextlib.contextmanager
    def create_file(self, name: str, mode: int = 0o666) -> Iterator[BinaryIO]:
        """Create a regular file for writing; raises `FileExistsError` if anything stands under the name."""
        with self._telling(name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(_one(name), flags, mode, dir_fd=self.descriptor)
            with os.fdopen(descriptor, "wb") as file:
                yield file

    def make_folder(self, name: str) -> None:
        """Create a sub-folder; raises `FileExistsError` if anything stands under the name."""
        with self._telling(name):
            os.mkdir(_one(name), dir_fd=self.descriptor)

    def link(self, name: str, new: str, into: "Folder | None" = None) -> None:
        """Give a file another name, here or in another folder; raises `FileExistsError` if that name stands there."""
        with self._telling(new):
            os.link(
                _one(name),
                _one(new),
                src_dir_fd=self.descriptor,
                dst_dir_fd=(into or self).descriptor,
                follow_symlinks=False,
            )

    def rename(self, name: str, new: str) -> None:
        """Rename within the folder; onto a folder that is not empty it fails, a file there is replaced."""
        with self._telling(name):
            os.rename(_one(name), _one(new), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file, or a link itself."""
        with self._telling(name):
            os.unlink(_one(name), dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove what stands under a name with all that is below it; links are removed, never followed.

        What is gone already is no error. Goes on where something cannot be removed, and raises the first error then.
        """
        errors: list[OSError] = []
        _remove(self, name, errors, _DEEPEST)
        if errors:
            raise errors[0]

    def remove_folder(self, name: str) -> None:
        """Remove a sub-folder that is empty."""
        with self._telling(name):
            os.rmdir(_one(name), dir_fd=self.descriptor)

    def sync(self) -> None:
        """Make the names in it durable; a filesystem that cannot do that for folders does not need it."""
        with self._telling(""):
            try:
                os.fsync(self.descriptor)
            except OSError as error:
                if error.errno not in _NO_SYNC:
                    raise

    @contextlib.contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Put the whole path into an error: a name alone tells nobody where."""
        try:
            yield
        except OSError as error:
            if error.filename is None or not Path(os.fsdecode(error.filename)).is_absolute():
                error.filename = str(self.path / name)
            raise


def read_from(file: BinaryIO, limit: int) -> bytes:
    """Return all of an open file, at most `limit` + 1 bytes."""
    parts, left = [], limit + 1
    while left > 0 and (part := file.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _remove(folder: Folder, name: str, errors: list[OSError], deepest: int) -> None:
    try:
        try:
            folder.unlink(name)
        except (IsADirectoryError, PermissionError) as refused:  # which one a folder gets depends on the system
            if not stat.S_ISDIR(folder.stat(name).st_mode):
                raise
            if deepest == 0:
                message = f"more than {_DEEPEST} folders lie in each other"
                raise OSError(errno.ELOOP, message, str(folder.path / name)) from refused
            with folder.folder(name) as below:
                for each in below.names():
                    _remove(below, each, errors, deepest - 1)
            folder.remove_folder(name)
    except FileNotFoundError:
        return
    except OSError as error:
        errors.append(error)


def _reject_other(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise NotRegularError(errno.EISDIR, "it is a folder, not a regular file")
    if not stat.S_ISREG(mode):
        kind = "FIFO" if stat.S_ISFIFO(mode) else "device"
        raise NotRegularError(errno.EINVAL, f"it is a {kind}, not a regular file")


def _one(name: str) -> str:
    """Return a name that is one component; records are not trusted, and neither are the names in them."""
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        encoded = b""
    if encoded in (b"", b".", b"..") or b"/" in encoded or b"\0" in encoded:
        raise OSError(errno.EINVAL, "it is not the name of a file", name)
    return name
