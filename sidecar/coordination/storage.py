"""Read and write small files in shared storage. The one primitive for agreement is create-if-absent.

Only the daemon's storage thread calls this module, since any call may hang with the storage. The module handles names
and bytes; `journal` and `heartbeats` interpret them. Another class with these methods could keep journal, heartbeats
and snapshot in an object store. Checkpoints, pins and saves need a POSIX mount.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from sidecar.errors import RecordError, StorageError
from sidecar.system import durable
from sidecar.system.confined import Folder, NotRegularError, open_folder, read_from
from sidecar.system.entry_errors import Entry, Meaning, meaning
from sidecar.system.shortages import shortage

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""The longest record that is written or read. A record that no daemon would read must never become visible."""

TEMPORARY: Final = ".tmp-"
"""The prefix of the names of unfinished writes. No program reads them; a killed daemon may leave one."""

_STALE_TRIES: Final = 3
"""Tries to read a file that another node replaces, on NFS."""

_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of link(2) on filesystems without hard links. They differ between kernels and FUSE servers."""

_MOUNTINFO: Final = Path("/proc/self/mountinfo")

_REMEDIES: Final = {
    errno.ENOSPC: "free some space there; the daemon then continues by itself",
    errno.EDQUOT: "free some of the quota or raise it; the daemon then continues by itself",
    errno.EROFS: "remount it writable, or name another state_dir (under systemd: add it to ReadWritePaths of the unit)",
    errno.ENOTDIR: "there is a file where a folder is expected: move it away",
    errno.ELOOP: "no link inside the state directory is followed: move it away (state_dir itself may be behind a link)",
    errno.EISDIR: "there is a folder where a file is expected: move it away",
    errno.ESTALE: "the mount has lost its server's files: mount it again",
    errno.EOPNOTSUPP: (
        "the filesystem has no hard links, which agreement needs and mounted buckets lack: let state_dir lie on a "
        "local disk or on NFS, with --state-dir /path/of/folder"
    ),
}


class Surveyed(NamedTuple):
    """Describe one file of `Storage.survey`. `content`: what this program last read or wrote, if that is unchanged."""

    modified: float
    content: bytes | None


class Storage(Protocol):
    """Define the requests of journal and heartbeats to storage.

    Paths are relative to the run's state directory: names with `/` between them.

    Every method raises `StorageError` if a request fails, and `RecordError` if a path leaves the state directory or a
    record is too long.
    """

    def create(self, path: str, data: bytes) -> None:
        """Create `path` with exactly `data`, durable before it is visible, unless the name exists.

        Neither a return nor an error proves anything, since replies get lost. Read the file to learn who created it.
        """

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """Return the whole content of a file; `None` if it does not exist.

        A file of more than `limit` bytes is cut to the first `limit` + 1. If `limit` is None, a file of more than
        `MAX_RECORD_BYTES` is an error.
        """

    def replace(self, path: str, data: bytes, *, survives_crash: bool = False, instead_of: bytes | None = None) -> None:
        """Write a file in place of the one that may exist: whole or not at all, and durably if `survives_crash`.

        With `instead_of` nothing is written unless the file has this content, in the same folder: the state directory
        may have been replaced meanwhile.
        """

    def rename(self, path: str, name: str) -> bool:
        """Give a file another name in its folder, and return whether it was there. The name may not survive a crash."""

    def sync(self, folder: str) -> None:
        """Make the names in a folder durable, those of other nodes as well; "" is the state directory itself."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if it does not exist. A listing may be out of date."""

    def modified(self, folder: str, names: Collection[str] | None = None) -> Mapping[str, float]:
        """Return when each file in a folder was last written, in seconds of the storage's own clock.

        The times may be out of date, and may only be compared with one another. Storage that does not know the times
        returns none. `names`: only these files are asked for; None: all.
        """

    def survey(self, folder: str) -> Mapping[str, Surveyed] | None:
        """Return the files in a folder by one request that also tells whose content changed; None if there is none."""

    def remove(self, path: str, *, holding: bytes | None = None) -> None:
        """Remove a file, if it exists and, with `holding`, has this content. The removal may not survive a crash."""

    def probe(self) -> bool:
        """Check that names are created once, as agreement needs it; return whether `instead_of` is compared for sure.

        Raises `SettingsError` if this storage cannot be used.
        """

    def sweep(self, folder: str, before: float) -> None:
        """Remove unfinished writes that were last written before a time of the storage's own clock, in seconds."""


class PosixStorage:
    """Store files in a folder on a POSIX filesystem: local, or NFS, Lustre and the like. Folders are made if needed.

    The path of the root is trusted. Other users may write below it. So each folder is opened by its name in the folder
    above it, no link is followed, and only regular files are read. A file of any other type is an error at once.

    `on_answer`: called whenever the storage has answered a request.
    """

    def __init__(self, root: Path, on_answer: Callable[[], None] = lambda: None) -> None:
        self.root, self._on_answer = root, on_answer

    def create(self, path: str, data: bytes) -> None:
        """Link an fsynced temporary file to the name. Then fsync the folder, so that the name is durable, too."""
        parent, name = self._split(path)
        _reject_long(path, len(data))
        with self._explained("create", path), self._folder(parent, make=True) as folder:
            temporary = _temporary_name()
            durable.write_new(folder, temporary, data)
            try:
                _link_if_absent(temporary, name, folder)
            finally:
                # Even if the link failed: its reply may be lost, and then the name exists and others act on it.
                with contextlib.suppress(OSError):
                    folder.unlink(temporary)
                folder.sync()

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """Open the folder, so that an NFS client asks the server about it, and then the file in it."""
        parent, name = self._split(path)
        with self._explained("read", path):
            for tries_left in reversed(range(_STALE_TRIES)):
                try:
                    with self._folder(parent) as folder, folder.open_file(name) as file:
                        if limit is None:
                            _reject_long(path, os.fstat(file.fileno()).st_size)
                        data = read_from(file, MAX_RECORD_BYTES if limit is None else limit)
                except OSError as error:
                    # On NFS, a file that another node replaces between open and read is stale, not damaged.
                    match meaning(Entry.RECORD, error, again=not tries_left):
                        case Meaning.GONE:
                            return None
                        case Meaning.RETRY:
                            continue
                    raise
                if limit is None:
                    _reject_long(path, len(data))
                return data
        raise AssertionError("the last try returns or raises")

    def replace(self, path: str, data: bytes, *, survives_crash: bool = False, instead_of: bytes | None = None) -> None:
        """Rename a temporary file to the name. Without `survives_crash` a crash of the machine may leave it torn."""
        parent, name = self._split(path)
        _reject_long(path, len(data))
        with self._explained("write", path), self._folder(parent, make=instead_of is None) as folder:
            if instead_of is not None and not _holds(folder, name, instead_of):
                return
            durable.replace(folder, name, data, temporary=_temporary_name(), survives_crash=survives_crash)

    def rename(self, path: str, name: str) -> bool:
        """Rename a file in its folder, which an NFS client opens anew."""
        parent, before = self._split(path)
        self._split(f"{parent}/{name}" if parent else name)
        with (
            self._explained("rename", path),
            contextlib.suppress(FileNotFoundError),
            self._folder(parent) as folder,
        ):
            folder.rename(before, name)
            return True
        return False

    def sync(self, folder: str) -> None:
        """Fsync the folder."""
        with self._explained("sync", folder), contextlib.suppress(FileNotFoundError), self._folder(folder) as opened:
            opened.sync()

    def names(self, folder: str) -> list[str]:
        """List the folder without temporary files."""
        self._split(folder)
        with self._explained("list", folder):
            try:
                with self._folder(folder) as opened:
                    return [name for name in opened.names() if not name.startswith(TEMPORARY)]
            except FileNotFoundError:
                return []

    def modified(self, folder: str, names: Collection[str] | None = None) -> Mapping[str, float]:
        """Return the mtimes of regular files.

        The machine that holds the storage sets them on each write, on NFS as well. Only NFS clients with delegated
        timestamps send times of their own. `touch`, `cp -p` and the like may set any time.
        """
        with self._explained("list", folder), contextlib.suppress(FileNotFoundError), self._folder(folder) as opened:
            asked = opened.names() if names is None else names
            return {name: at for name in asked if (at := _written_at(opened, name)) is not None}
        return {}

    def survey(self, folder: str) -> None:
        """Return None: the times of files may be set by anybody, and have the resolution of a tick."""

    def remove(self, path: str, *, holding: bytes | None = None) -> None:
        """Unlink a file. A folder is not removed, and is an error."""
        parent, name = self._split(path)
        with (
            self._explained("remove", path),
            contextlib.suppress(FileNotFoundError),
            self._folder(parent) as folder,
        ):
            if holding is None or _holds(folder, name, holding):
                folder.unlink(name)

    def probe(self) -> bool:
        """Do nothing: the first creation tells whether the filesystem has hard links, and these are certain."""
        return True

    def sweep(self, folder: str, before: float) -> None:
        """Unlink old temporary files. One that cannot be removed is left there."""
        with self._explained("list", folder), contextlib.suppress(FileNotFoundError), self._folder(folder) as opened:
            for name in opened.names():
                if name.startswith(TEMPORARY) and (at := _written_at(opened, name)) is not None and at < before:
                    with contextlib.suppress(OSError):
                        opened.unlink(name)

    def _split(self, path: str) -> tuple[str, str]:
        """Return folder and name of a path. It must not leave the root: it comes from a record and is not trusted."""
        parts = path.split("/")
        if any(part in ("", ".", "..") or part.startswith(TEMPORARY) or "\0" in part for part in parts):
            raise RecordError(f"{path!r} is not a path inside {self.root}: expected names with / between them")
        return "/".join(parts[:-1]), parts[-1]

    def _folder(self, path: str, *, make: bool = False) -> Folder:
        """Open a folder: the calls on it act in this folder, even if it is moved meanwhile.

        "" is the root. `make` creates absent folders; each name is durable before anything is created below it.
        """
        if path:
            self._split(path)
        if make:
            _make_folder(self.root)
        root = open_folder(self.root)
        if not path:
            return root
        with root:
            return root.folder(path, make=make)

    @contextlib.contextmanager
    def _explained(self, verb: str, path: str) -> Iterator[None]:
        """Turn an error of the operating system into one sentence with the path, the reason and the remedy."""
        try:
            yield
            self._on_answer()
        except OSError as error:
            target = self.root / path
            reason = os.strerror(error.errno) if error.errno else str(error)
            if isinstance(error, NotRegularError):
                reason, remedy = str(error.strerror), "move it away"
            elif error.errno in (errno.EACCES, errno.EPERM):
                may = "read it" if verb in ("read", "list", "sync") else "write there"
                remedy = f"let the user with id {os.geteuid()}, as whom this daemon runs, {may}"
            else:
                remedy = shortage(error) or _REMEDIES.get(error.errno or 0, "check the storage that holds it")
            at = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else target
            if at not in (target, self.root) and target.is_relative_to(at):
                reason = f"{reason} ({at})"
            raise StorageError(f"cannot {verb} {target}: {reason}; {remedy}") from error


def _reject_long(path: str, length: int) -> None:
    """Raise `RecordError` if a record is too long."""
    if length > MAX_RECORD_BYTES:
        raise RecordError(f"{path} is longer than the {MAX_RECORD_BYTES} bytes that a record may have")


def _holds(folder: Folder, name: str, data: bytes) -> bool:
    """Return whether a file begins with this content. Content from `Storage.read` with a limit may be cut."""
    return folder.read(name, len(data))[: len(data)] == data


def _written_at(folder: Folder, name: str) -> float | None:
    """Return when a file was last written; `None` if that is unknown, or it is not a regular file."""
    try:
        found = folder.stat(name)
    except OSError:
        return None
    return found.st_mtime if stat.S_ISREG(found.st_mode) else None


def _temporary_name() -> str:
    return f"{TEMPORARY}{secrets.token_hex(8)}"


def _link_if_absent(temporary: str, name: str, folder: Folder) -> None:
    """Give a temporary file its final name, unless that exists."""
    try:
        folder.link(temporary, name)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno in _NO_HARD_LINKS or (error.errno == errno.EIO and _is_fuse(folder)):
            # There is no other way: with O_EXCL on the final name, an early reader would see a torn record.
            raise OSError(errno.EOPNOTSUPP, "no hard links") from error
        raise


def _is_fuse(folder: Folder) -> bool:
    """Return whether a folder is on FUSE, such as rclone, which answers each request for a link with EIO."""
    try:
        device = os.fstat(folder.descriptor).st_dev
        lines = _MOUNTINFO.read_text(errors="replace").splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    return any(fields[2:3] == [number] and " - fuse" in line for line in lines if (fields := line.split()))


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it; each name is durable before anything is created below it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    with open_folder(folder.parent) as parent:
        parent.sync()
