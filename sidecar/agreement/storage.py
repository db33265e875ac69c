"""Where daemons meet: a folder on storage that all of them share, and the one primitive, create-if-absent.

Called from the daemon's I/O thread only, since any call may hang with the storage. It knows names and bytes, not what
they mean: records are the business of `journal` and `members`. Another kind of storage (S3 with `If-None-Match: *`, GCS
with generation 0) is another class with these five methods.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from sidecar.errors import RecordError, StorageError

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""No record is longer: one that nobody would read back must never become visible."""

TEMPORARY: Final = ".tmp-"
"""Prefix of names that nobody reads: unfinished writes, or what a killed daemon left of one."""

_STALE_TRIES: Final = 3


class Storage(Protocol):
    """What journal and members ask of storage. Paths are relative to the run's state directory: names with `/` between.

    Every method raises `StorageError` if the storage does not answer as it should, and `RecordError` if a path leaves
    the state directory or a record is too long.
    """

    def create(self, path: str, data: bytes) -> None:
        """Create `path` with exactly `data`, durable before it is visible, unless the name exists.

        Returning proves nothing, nor does raising: replies get lost. Read the name to learn who created it.
        """
        ...

    def read(self, path: str) -> bytes | None:
        """Return all of what stands under the name, None if nothing does."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Put `data` under the name, whatever stood there; whole or not at all, but not durable."""
        ...

    def sync(self, folder: str) -> None:
        """Make the names in a folder durable, whoever created them; "" is the state directory itself."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if it does not exist. A hint only: listings lag behind."""
        ...


class PosixStorage:
    """A folder on a POSIX filesystem: local, or NFS, Lustre and the like. Folders are made when first written to."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, path: str, data: bytes) -> None:
        """Link an fsynced temporary file to the name; then fsync the folder, so that the name is durable too."""
        parent, name = self._split(path)
        _reject_long(path, len(data))
        with self._explained("create", path), _folder(self._made(parent)) as folder:
            temporary = _write_temporary(folder, data, durable=True)
            try:
                _link_if_absent(temporary, name, folder)
            finally:
                # Even if link failed: its reply may be lost, and then the name is there and others act on it.
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                _sync_folder(folder)

    def read(self, path: str) -> bytes | None:
        """Open the folder, so that an NFS client asks the server about it, then the name in it."""
        parent, name = self._split(path)
        with self._explained("read", path):
            for tries_left in reversed(range(_STALE_TRIES)):
                try:
                    with _folder(self.root / parent) as folder:
                        return _read_all(path, name, folder)
                except FileNotFoundError:
                    return None
                except OSError as error:
                    # On NFS a file that another node replaces between our open and read is stale, not broken.
                    if error.errno != errno.ESTALE or not tries_left:
                        raise
        raise AssertionError("the last try returns or raises")

    def replace(self, path: str, data: bytes) -> None:
        """Rename a temporary file over the name. After a crash of the machine the name may be empty or torn."""
        parent, name = self._split(path)
        _reject_long(path, len(data))
        with self._explained("write", path), _folder(self._made(parent)) as folder:
            temporary = _write_temporary(folder, data, durable=False)
            try:
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def sync(self, folder: str) -> None:
        """Fsync the folder."""
        path = self.root.joinpath(*self._split(folder)) if folder else self.root
        with self._explained("sync", folder), contextlib.suppress(FileNotFoundError), _folder(path) as opened:
            _sync_folder(opened)

    def names(self, folder: str) -> list[str]:
        """List the folder without temporary files."""
        parent, name = self._split(folder)
        with self._explained("list", folder):
            try:
                with _folder(self.root / parent / name) as opened, os.scandir(opened) as entries:
                    return sorted(entry.name for entry in entries if not entry.name.startswith(TEMPORARY))
            except FileNotFoundError:
                return []

    def _split(self, path: str) -> tuple[str, str]:
        """Folder and name of a path that stays inside the root; paths come out of records, so they are not trusted."""
        parts = path.split("/")
        if any(part in ("", ".", "..") or part.startswith(TEMPORARY) or "\0" in part for part in parts):
            raise RecordError(f"{path!r} is no path inside {self.root}: expected names with / between them")
        return str(PurePosixPath(*parts[:-1])), parts[-1]

    def _made(self, parent: str) -> Path:
        folder = self.root / parent
        _make_folder(folder)
        return folder

    @contextlib.contextmanager
    def _explained(self, verb: str, path: str) -> Iterator[None]:
        """Turn what the operating system says into one sentence with the path, the reason and the remedy."""
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            remedy = _REMEDIES.get(error.errno or 0, "look at the storage that holds it")
            raise StorageError(f"cannot {verb} {self.root / path}: {reason}; {remedy}") from error


_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""What link(2) says where there are no hard links; kernels and FUSE servers differ."""

_REMEDIES: Final = {
    errno.ENOSPC: "free some space there, then this goes on by itself",
    errno.EDQUOT: "free some of the quota or raise it, then this goes on by itself",
    errno.EROFS: "remount it writable, or name another state_dir (under systemd: add it to ReadWritePaths of the unit)",
    errno.EACCES: f"let the user with id {os.getuid()}, as whom this daemon runs, write there",
    errno.EPERM: f"let the user with id {os.getuid()}, as whom this daemon runs, write there",
    errno.ENOTDIR: "a file stands where a folder is expected: move it away",
    errno.EISDIR: "a folder stands where a file is expected: move it away",
    errno.ESTALE: "the mount has lost its server's files: mount it again",
    errno.EOPNOTSUPP: "the filesystem has no hard links, which agreement needs: let state_dir lie on one that has",
}


def _reject_long(path: str, length: int) -> None:
    if length > MAX_RECORD_BYTES:
        raise RecordError(f"{path} is longer than the {MAX_RECORD_BYTES} bytes that a record may have")


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Open a folder for the names in it: what happens next happens in this folder, even if it is moved meanwhile."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield opened
    finally:
        os.close(opened)


def _read_all(path: str, name: str, folder: int) -> bytes:
    with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as file:
        data = file.read(MAX_RECORD_BYTES + 1)
    _reject_long(path, len(data))
    return data


def _write_temporary(folder: int, data: bytes, *, durable: bool) -> str:
    """Write a temporary file into the folder and return its name; it is gone again if that failed."""
    name = f"{TEMPORARY}{secrets.token_hex(8)}"
    opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    return name


def _link_if_absent(temporary: str, name: str, folder: int) -> None:
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            # No way round it: O_EXCL on the final name would show a torn record to whoever reads it early.
            raise OSError(errno.EOPNOTSUPP, "no hard links") from error
        raise


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it; each name is durable before anything is created below it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    with _folder(folder.parent) as parent:
        _sync_folder(parent)


def _sync_folder(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network filesystems cannot, and need not: their servers answer when a name is durable.
        # On a read-only mount, where people look at a run, nothing is left to be written.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
