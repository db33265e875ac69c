"""List, open and sample the regular files of one folder without ever leaving it. No format is known here.

A file in a sub-folder is named by its path from the folder, with `/`.
"""

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Container, Iterable, Iterator
from fnmatch import translate
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from sidecar.entry_errors import Entry, Meaning, meaning
from sidecar.errors import CorruptError, VanishedError

NEVER: Final = (".*", "workertemp_*", "tmp-*", "*.tmp*")
"""Names that writers use for what is not finished, and this program for its own."""

_NEVER: Final = re.compile("|".join(map(translate, NEVER)))
_NEVER_FOLDERS: Final = re.compile("|".join(map(translate, (*NEVER, "*_temp", "*.orbax-checkpoint-tmp*"))))
_SAMPLE_BYTES: Final = 64 * 1024
_ALL_BYTES: Final = 16 * 1024 * 1024  # below this, hashing all of a file costs less than a scan may take
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)  # such a path cannot be there
_STRIDE_BYTES: Final = 1024 * 1024
_PROBE_BYTES: Final = 4096
_MOST_PROBES: Final = 16 * 1024


class File(NamedTuple):
    """A regular file as one `stat` saw it."""

    name: str
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int

    @property
    def content(self) -> tuple[str, int, int]:
        """Return what changes when the content does; a hard link made to the file changes only its ctime."""
        return self.name, self.size, self.mtime_ns


def contents(files: "Iterable[File]") -> list[tuple[str, int, int]]:
    """Return what changes when one of these does; links that are made to them do not count."""
    return [file.content for file in files]


class Listing(NamedTuple):
    """A folder's own regular files by name, the names of links that lead out of it, and its sub-folders, unentered.

    It may be of some names only. `named`: what the folder's state file lists; None if that is to be read.
    """

    files: dict[str, File]
    escaping: frozenset[str] = frozenset()
    folders: tuple[str, ...] = ()
    named: Container[str] | None = None


def is_temporary(name: str, *, folder: bool = False) -> bool:
    """Return whether a name says that this is not finished, or not a checkpoint's."""
    return (_NEVER_FOLDERS if folder else _NEVER).match(name) is not None


def list_files(folder: Path, *, all_names: bool = False) -> Listing:
    """List a folder, not its sub-folders; raises OSError if the folder itself cannot be read.

    Links to files are followed, within the folder; links to folders are not. Names of what is not finished are left
    out, unless `all_names` are asked for.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in entries]
        return stat_files(folder, descriptor, (name for name in names if all_names or not is_temporary(name)))
    finally:
        os.close(descriptor)


def stat_files(folder: Path, descriptor: int, names: Iterable[str]) -> Listing:
    """Return what lies under some names of an opened folder, without names that are gone. Raises OSError."""
    files, escaping, folders = {}, set(), []
    for name in names:
        there = _stat(folder, descriptor, name)
        if there is None:
            continue
        if stat.S_ISLNK(there.st_mode):
            escaping.add(name)
        elif stat.S_ISREG(there.st_mode):
            files[name] = as_file(name, there)
        elif stat.S_ISDIR(there.st_mode) and not is_temporary(name, folder=True):
            folders.append(name)
    return Listing(files, frozenset(escaping), tuple(sorted(folders)))


def _stat(folder: Path, descriptor: int, name: str, *, again: bool = False) -> os.stat_result | None:
    """A name, or the file that it links to; the link itself if it leads out of the folder; None if it is not there."""
    link = False
    try:
        there = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if link := stat.S_ISLNK(there.st_mode):
            if not _is_inside(folder, folder / name):
                return there
            there = os.stat(name, dir_fd=descriptor)
            return None if stat.S_ISDIR(there.st_mode) else there
    except OSError as error:
        if link and error.errno in (errno.ENOTDIR, errno.ELOOP):
            return None  # a link to nothing
        match meaning(Entry.CHECKPOINT, error, again=again):
            case Meaning.GONE:
                return None
            case Meaning.RETRY:
                return _stat(folder, descriptor, name, again=True)
        raise
    return there


def as_file(name: str, there: os.stat_result) -> File:
    """Return the part of a `stat` that is remembered."""
    return File(name, there.st_size, there.st_mtime_ns, there.st_ino, there.st_ctime_ns)


def resolve(folder: Path, name: str) -> Path:
    """Return the real path of a file; a link may lead elsewhere in the folder, never out of it."""
    root = Path(os.path.realpath(folder))
    path = root / name
    if path.parent != root or path.name in ("", "..") or path.is_symlink():
        path = Path(os.path.realpath(path))
        if not path.is_relative_to(root):
            raise CorruptError(f"{folder / name} leads out of {folder}: copy the file there instead of linking it")
    return path


def size_of(folder: Path, name: str) -> int | None:
    """Return bytes of a regular file; None if there is none of that name."""
    try:
        there = resolve(folder, name).stat()
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    return there.st_size if stat.S_ISREG(there.st_mode) else None


@contextlib.contextmanager
def open_file(folder: Path, name: str) -> Iterator[BinaryIO]:
    """Open a regular file for reading, unbuffered; raises `VanishedError` if it is gone, else OSError."""
    # Not following, since it was resolved; not blocking, in case somebody put a FIFO there meanwhile.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(resolve(folder, name), flags)
    except OSError as error:
        if error.errno in _ABSENT:
            raise VanishedError(f"{folder / name} is gone") from error
        raise
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CorruptError(f"{folder / name} is not a regular file")
        yield file


def is_there(path: Path) -> bool:
    """Return whether a regular file is there. It is opened, because on NFS listings and cached names may be old."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        return path.is_file()  # that it exists is all that it has to say
    except OSError as error:
        if error.errno in (*_ABSENT, errno.ESTALE, errno.ENXIO, errno.ELOOP):  # ENXIO: a socket
            return False
        raise
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def read_file(folder: Path, name: str, *, limit: int) -> bytes:
    """Return all of a file of at most `limit` bytes; a larger one is a `CorruptError`."""
    with open_file(folder, name) as file:
        return read_opened(file, folder / name, limit=limit)


def read_opened(file: BinaryIO, path: Path, *, limit: int) -> bytes:
    """As `read_file`, of a file that is open."""
    parts, left = [], limit + 1
    while left > 0 and (part := file.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    if left <= 0:
        raise CorruptError(f"{path} is larger than the {limit} bytes that such a file may have")
    return b"".join(parts)


def sampled_digest(folder: Path, names: Iterable[str]) -> str:
    """A name for content that has no structure to take one from: SHA-256 of names, sizes, heads and tails."""
    digest = hashlib.sha256()
    for name in sorted(names):
        with open_file(folder, name) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, 0))
            digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, max(0, size - _SAMPLE_BYTES)))
    return digest.hexdigest()


def update_from_content(digest: "hashlib._Hash", file: BinaryIO) -> None:
    """Add a file that has no checksums of its own: its size and all of it, or if it is large a part of each MiB.

    Head and tail are 64 KiB, since formats keep their tables there; between them 4 KiB of each MiB, so that weights
    that changed show, wherever they lie. Above 16 GiB the parts lie further apart: a scan must end.
    """
    descriptor = file.fileno()
    size = os.fstat(descriptor).st_size
    digest.update(f"{size}\0".encode())
    if size <= _ALL_BYTES:
        for offset in range(0, size, _STRIDE_BYTES):
            digest.update(os.pread(descriptor, _STRIDE_BYTES, offset))
        return
    digest.update(os.pread(descriptor, _SAMPLE_BYTES, 0))
    stride = max(_STRIDE_BYTES, size // _MOST_PROBES)
    for offset in range(stride, size, stride):
        digest.update(os.pread(descriptor, _PROBE_BYTES, offset))
    digest.update(os.pread(descriptor, _SAMPLE_BYTES, size - _SAMPLE_BYTES))


def _is_inside(folder: Path, path: str | Path) -> bool:
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(path)]) == root
