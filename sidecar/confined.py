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
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_SYNC: Final = (errno.EINVAL, errno.ENOTSUP, errno.EROFS, errno.EBADF)
"""What fsync of a folder says where it is not needed: some network filesystems, and mounts that are read-only."""


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
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(_one(name), dir_fd=self.descriptor)
                    self.sync()
            descriptor = os.open(_one(name), _FOLDER, dir_fd=self.descriptor)
        try:
            yield Folder(descriptor, self.path / name)
        finally:
            os.close(descriptor)

    def names(self) -> list[str]:
        """Return the names in it, sorted."""
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
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
                    raise NotRegularError(error.errno, "it is not a regular file") from error
                raise
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise NotRegularError(errno.EINVAL, "it is not a regular file")
                yield file

    def read(self, name: str, limit: int) -> bytes:
        """Return all of a regular file, at most `limit` + 1 bytes: the caller refuses what is longer than `limit`."""
        with self.open_file(name) as file:
            parts, left = [], limit + 1
            while left > 0 and (part := file.read(min(left, 1 << 20))):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)

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
        errors: list[BaseException] = []

        def note(_: object, __: object, error: tuple[type, BaseException, object]) -> None:
            if not isinstance(error[1], FileNotFoundError):
                errors.append(error[1])

        with self._telling(name):
            try:
                os.unlink(_one(name), dir_fd=self.descriptor)
            except FileNotFoundError:
                return
            except (IsADirectoryError, PermissionError):  # which of the two is said for a folder depends on the system
                shutil.rmtree(_one(name), onerror=note, dir_fd=self.descriptor)
            if errors:
                raise errors[0]

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


def _one(name: str) -> str:
    """Return a name that is one component; records are not trusted, and neither are the names in them."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise OSError(errno.EINVAL, "it is not the name of a file", name)
    return name
