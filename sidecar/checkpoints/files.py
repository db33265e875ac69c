"""List, open and sample the regular files of one folder without ever leaving it. This module knows no format.

The name of a file in a sub-folder is its path from the folder, with `/`.
"""

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Container, Iterable, Iterator
from fnmatch import translate
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from sidecar.checkpoints.work_budget import OPENED_FILE, READ_KIB, SAMPLE, WorkBudget
from sidecar.errors import CorruptError, VanishedError
from sidecar.system.bucket_folder import BucketFolder, ObjectFile, place_of
from sidecar.system.confined import read_from
from sidecar.system.entry_errors import Entry, Meaning, meaning

NEVER: Final = (".*", "workertemp_*", "tmp-*", "*.tmp*")
"""Names that writers give to unfinished files, and this program to its own files."""

_NEVER: Final = re.compile("|".join(map(translate, NEVER)))
_NEVER_FOLDERS: Final = re.compile("|".join(map(translate, (*NEVER, "*_temp", "tmp_*", "*.orbax-checkpoint-tmp*"))))
_SAMPLE_BYTES: Final = 64 * 1024
_ALL_BYTES: Final = 16 * 1024 * 1024  # a file up to this size is hashed as a whole: that takes less than a scan may
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)  # such a path does not exist
_STRIDE_BYTES: Final = 1024 * 1024  # from one probe to the next
_PROBE_BYTES: Final = 4096  # read at each stride of a large file
_MOST_PROBES: Final = 16 * 1024

MOST_ENTRIES: Final = 120_000
"""The most entries of a folder that belong to one checkpoint: 100,000 shards, and what lies beside them."""


class File(NamedTuple):
    """Hold the state of a regular file, from one `stat`."""

    name: str
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int

    @property
    def content(self) -> tuple[str, int, int]:
        """Return the values that change with the content. A new hard link to the file changes only its ctime."""
        return self.name, self.size, self.mtime_ns


def contents(files: "Iterable[File]") -> list[tuple[str, int, int]]:
    """Return the values that change with the content of one of the files. New hard links to them do not count."""
    return [file.content for file in files]


class Listing(NamedTuple):
    """List the entries of a folder, or some of them, without entering its sub-folders.

    `files`: its regular files by name. `escaping`: links that lead out of the folder. `folders`: its sub-folders.
    `named`: the checkpoints that the folder's state file lists; None if the reader of the listing must read that file.
    """

    files: dict[str, File]
    escaping: frozenset[str] = frozenset()
    folders: tuple[str, ...] = ()
    named: Container[str] | None = None


def is_temporary(name: str, *, folder: bool = False) -> bool:
    """Return whether a name is one of unfinished files, or of files that belong to no checkpoint."""
    return (_NEVER_FOLDERS if folder else _NEVER).match(name) is not None


def list_files(folder: Path, *, all_names: bool = False, most: int | None = None) -> Listing:
    """List a folder, not its sub-folders. Raises OSError if the folder itself cannot be read.

    Links to files in the folder are followed, links to folders are not. `all_names`: whether names of unfinished files
    are listed, too. `most`: more entries than these raise `CorruptError`.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in islice(entries, None if most is None else most + 1)]
        if most is not None and len(names) > most:
            raise CorruptError(f"{folder} holds more than {most} entries, which no checkpoint does")
        return stat_files(folder, descriptor, (name for name in names if all_names or not is_temporary(name)))
    finally:
        os.close(descriptor)


def stat_files(folder: Path, descriptor: int, names: Iterable[str]) -> Listing:
    """Return the listing of some names in an opened folder, without names that are gone. Raises OSError."""
    files, escaping, folders = {}, set(), []
    for name in names:
        status = _stat(folder, descriptor, name)
        if status is None:
            continue
        if stat.S_ISLNK(status.st_mode):
            escaping.add(name)
        elif stat.S_ISREG(status.st_mode):
            files[name] = as_file(name, status)
        elif stat.S_ISDIR(status.st_mode) and not is_temporary(name, folder=True):
            folders.append(name)
    return Listing(files, frozenset(escaping), tuple(sorted(folders)))


def _stat(folder: Path, descriptor: int, name: str, *, again: bool = False) -> os.stat_result | None:
    """Return the `stat` of a name, following a link within the folder; None if there is no such file or folder.

    For a link out of the folder return the `stat` of the link itself. Raises OSError.
    """
    is_link = False
    try:
        status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if is_link := stat.S_ISLNK(status.st_mode):
            if not _is_inside(folder, folder / name):
                return status
            status = os.stat(name, dir_fd=descriptor)
            return None if stat.S_ISDIR(status.st_mode) else status
    except OSError as error:
        if is_link and error.errno in (errno.ENOTDIR, errno.ELOOP):
            return None  # a link to nothing
        match meaning(Entry.CHECKPOINT, error, again=again):
            case Meaning.GONE:
                return None
            case Meaning.RETRY:
                return _stat(folder, descriptor, name, again=True)
        raise
    return status


def as_file(name: str, status: os.stat_result) -> File:
    """Return the part of a file's `stat` that is compared between scans."""
    return File(name, status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


def resolve(folder: Path, name: str) -> Path:
    """Return the path of a file without links in `name`. Raises `CorruptError` if a link leads out of the folder."""
    path = folder / name
    if "/" not in name and name not in ("", ".", "..") and not path.is_symlink():
        return path  # the usual case, without asking for each folder above it
    root = Path(os.path.realpath(folder))
    path = Path(os.path.realpath(root / name))
    if not path.is_relative_to(root):
        raise CorruptError(f"{folder / name} leads out of {folder}: copy the file there instead of linking it")
    return path


def size_of(folder: Path, name: str) -> int | None:
    """Return the bytes of a regular file; None if there is no regular file of that name. Raises OSError."""
    try:
        status = resolve(folder, name).stat()
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextlib.contextmanager
def open_file(folder: Path, name: str) -> Iterator[BinaryIO]:
    """Open a regular file for reading, unbuffered. Raises `VanishedError` if it is gone, else OSError."""
    # O_NOFOLLOW, because only `resolve` follows links. O_NONBLOCK, in case a FIFO has replaced the file.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(resolve(folder, name), flags)
    except OSError as error:
        if error.errno in _ABSENT:
            raise VanishedError(f"{place_of(folder / name)} is gone") from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise VanishedError(f"{place_of(folder / name)} is a folder")
        raise CorruptError(f"{place_of(folder / name)} is not a regular file")
    if isinstance(folder, BucketFolder):
        opened = folder.source.open(folder / name, descriptor)
    else:
        opened = os.fdopen(descriptor, "rb", buffering=0)
    with opened as file:
        yield file


def read_at(file: BinaryIO, length: int, offset: int) -> bytes:
    """Return up to `length` bytes of a file of `open_file`, from `offset` on. Its descriptor may be that of a stub."""
    file.seek(offset)
    return file.read(length)


def is_there(path: Path) -> bool:
    """Return whether a regular file exists. Raises OSError. The file is opened, because NFS may cache old names."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        return path.is_file()  # the question is only whether the file exists
    except OSError as error:
        if error.errno in (*_ABSENT, errno.ESTALE, errno.ENXIO, errno.ELOOP):  # ENXIO: a socket
            return False
        raise
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def read_file(folder: Path, name: str, *, limit: int) -> bytes:
    """Return the content of a file. Raises `CorruptError` if it has more than `limit` bytes."""
    with open_file(folder, name) as file:
        return read_opened(file, folder / name, limit=limit)


def read_opened(file: BinaryIO, path: Path, *, limit: int) -> bytes:
    """Return the content of an open file from its position on, as `read_file` does. `path` is for the message."""
    content = read_from(file, limit)
    if len(content) > limit:
        raise CorruptError(f"{path} is larger than the {limit} bytes that such a file may have")
    return content


def sampled_digest(folder: Path, names: Iterable[str]) -> str:
    """Return a digest of files whose structure is not known: SHA-256 of their names, sizes, heads and tails."""
    digest = hashlib.sha256()
    for name in sorted(names):
        with open_file(folder, name) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            digest.update(read_at(file, _SAMPLE_BYTES, 0))
            digest.update(read_at(file, _SAMPLE_BYTES, max(0, size - _SAMPLE_BYTES)))
    return digest.hexdigest()


def update_from_content(digest: "hashlib._Hash", file: BinaryIO, work: WorkBudget) -> None:
    """Update a digest with a file that has no checksums: its size and its content, of a large file a part of each MiB.

    These parts are 64 KiB at the head and at the tail, where formats have their tables, and 4 KiB of each MiB between
    them, so that changed weights change the digest wherever they lie. Because a scan must end, the parts lie further
    apart above 16 GiB, and when the files of one checkpoint have used up the samples of its `work`.
    """
    size = os.fstat(file.fileno()).st_size
    digest.update(f"{size}\0".encode())
    work.add(OPENED_FILE)
    if isinstance(file, ObjectFile):
        return  # `BucketMirror.digest` identifies objects by their etags
    if size <= _ALL_BYTES and work.take_whole(size):
        for offset in range(0, size, _STRIDE_BYTES):
            part = read_at(file, _STRIDE_BYTES, offset)
            digest.update(part)
            work.add(READ_KIB * (1 + len(part) // 1024))
        return
    digest.update(read_at(file, _SAMPLE_BYTES, 0))
    stride = max(_STRIDE_BYTES, size // _MOST_PROBES)
    wanted = max(0, -(-size // stride) - 1)
    taken = work.take_samples(wanted)
    if taken < wanted:
        stride = size // (taken + 1) + 1
    for offset in range(stride, size, stride):
        digest.update(read_at(file, _PROBE_BYTES, offset))
        work.add(SAMPLE)
    digest.update(read_at(file, _SAMPLE_BYTES, size - _SAMPLE_BYTES))


def _is_inside(folder: Path, path: str | Path) -> bool:
    """Return whether a path, with all its links followed, lies in a folder."""
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(path)]) == root
