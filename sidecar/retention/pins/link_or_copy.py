"""Gather the files of a checkpoint in a new folder, by links if they are allowed, else by copies.

This blocks for as long as the storage does. The folder is open, so nothing is written through a link.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import BinaryIO, Final

from sidecar.checkpoints.files import File, as_file, open_file, resolve, size_of
from sidecar.checkpoints.filesystem import mount_here
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.scan import DiscoveredCheckpoint, parent_of
from sidecar.errors import IncompleteError, MustCopyError, UnreadableError
from sidecar.retention.pins.disk_budget import DiskBudget
from sidecar.system.bucket_folder import BucketFolder, ObjectFile
from sidecar.system.confined import Folder
from sidecar.system.durable import sync_file
from sidecar.system.entry_errors import Entry, Meaning, meaning

_MOST_OPEN: Final = 128
"""The most files of a checkpoint that are open at the same time. A process may open 1024."""

_NO_LINK: Final = (
    errno.EPERM,  # another user's file (fs.protected_hardlinks), or a filesystem without links
    errno.EXDEV,  # the state directory is on another filesystem
    errno.EMLINK,
    errno.EACCES,
    errno.ENOSYS,  # FUSE
    errno.ENOTSUP,
)
"""Errors with which a link is refused although a copy may work."""

_PART_BYTES: Final = 1024 * 1024

_SMALL_BYTES: Final = 16 * 1024 * 1024
"""Every node copies this much itself, because that takes less time than waiting for another node's copy and protects
against deletion at once."""


def gather(discovered: DiscoveredCheckpoint, into: Folder, room: DiskBudget, *, copies: bool) -> tuple[File, ...]:
    """Link or copy each file durably, and return the state of the trainer's files.

    Links are made first, so that the size of the remaining copies is known before the first byte. Raises
    `MustCopyError`, `NoRoomError`, `UnreadableError`, and OSError if the folder cannot be written or a file is gone.
    """
    format_ = FORMATS[discovered.checkpoint.format]
    names = tuple(file.name for file in discovered.files)
    if not names:
        with reading(discovered.checkpoint.name):
            names = format_.inspect(discovered.folder, PurePath(discovered.checkpoint.name).name).files
    with contextlib.ExitStack() as stack:
        folders = _folders(into, names, stack)
        gathered: dict[str, File] = {}
        # One refusal counts for all: the files have the same owner and storage. Objects of a bucket cannot be linked.
        refused = isinstance(discovered.folder, BucketFolder)
        for name in names:
            if refused or format_.written_in_place(name):
                continue
            linked = _link(discovered.folder, name, folders[parent_of(name)])
            refused = linked is None
            if linked is not None:
                gathered[name] = linked
        rest = [name for name in names if name not in gathered]
        with reading(discovered.checkpoint.name):
            sizes = [size_of(discovered.folder, name) or 0 for name in rest]  # copying reports files that are gone
        if not copies and sum(sizes) > _SMALL_BYTES:
            raise MustCopyError(f"{sum(sizes)} bytes of {discovered.checkpoint.name} cannot be linked")
        # An open file can be copied even if training deletes it meanwhile.
        opened = {name: stack.enter_context(_open(discovered.folder, name)) for name in rest[:_MOST_OPEN]}
        for place, name in enumerate(rest):
            room.require_copy(sum(sizes[place:]))  # training may have written meanwhile
            with opened.get(name) or _open(discovered.folder, name) as original:
                gathered[name] = _copy(original, name, folders[parent_of(name)])
        for folder in folders.values():
            folder.sync()
    return tuple(gathered[name] for name in names)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn an OSError of reading into `UnreadableError`, which distinguishes it from errors of writing.

    A file that cannot be read now does not make the checkpoint corrupt, and other checkpoints can still be pinned.
    """
    try:
        yield
    except OSError as error:
        if meaning(Entry.CHECKPOINT, error) is not Meaning.UNKNOWN:
            raise  # the file is gone, or must be opened once more
        raise UnreadableError(f"{what} cannot be read: {error.strerror}") from error


def _folders(into: Folder, names: tuple[str, ...], stack: contextlib.ExitStack) -> dict[str, Folder]:
    """Return the opened folders for files by path: `into`, and new folders below it."""
    folders = {"": into}
    for parent in sorted({parent_of(name) for name in names} - {""}):
        folders[parent] = stack.enter_context(into.folder(parent, make=True))
    return folders


@contextlib.contextmanager
def _open(folder: Path, name: str) -> Iterator[BinaryIO]:
    """Open a file of the trainer's. Raises `UnreadableError` if it cannot be read."""
    with contextlib.ExitStack() as stack:
        with reading(name):
            opened = stack.enter_context(open_file(folder, name))
        yield opened


def _link(source: Path, name: str, into: Folder) -> File | None:
    """Link a file into a folder, and return the file; None if links are refused. Raises OSError."""
    base = PurePath(name).name
    try:
        # The link must not be to a symbolic link, so that is resolved first. A link that comes later is not followed.
        os.link(resolve(source, name), base, dst_dir_fd=into.descriptor, follow_symlinks=False)
    except FileExistsError:  # nobody else writes into this folder, so NFS sent the request twice
        pass
    except OSError as error:
        if error.errno in _NO_LINK:
            return None
        raise
    status = into.stat(base)
    if not stat.S_ISREG(status.st_mode):
        raise IncompleteError(f"{source / name} was replaced by something that is not a regular file")
    return as_file(name, status)


def _copy(original: BinaryIO, name: str, into: Folder) -> File:
    """Copy a file's content and time of modification durably into a folder, and return the original file."""
    before = os.fstat(original.fileno())
    with into.create_file(PurePath(name).name) as copy:
        if isinstance(original, ObjectFile):
            with reading(name):
                original.fetch(copy)
        else:
            while part := _part(original, name):
                copy.write(part)
            copy.flush()
        status = os.fstat(original.fileno())
        if as_file(name, status).content != as_file(name, before).content and _is_only_read(original, name, into):
            status = before
        os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
        sync_file(copy)
    return as_file(name, status)


def _is_only_read(original: BinaryIO, name: str, into: Folder) -> bool:
    """Return whether only the copying itself has changed the time of a file, as rclone's mounts do for an hour.

    A second reading on such a mount finds what was copied, and changes the time again.
    """
    path = Path(f"/proc/self/fd/{original.fileno()}")
    mount = mount_here(path)
    if mount is None or not mount.filesystem.startswith("fuse"):
        return False
    with reading(name), path.open("rb") as again, into.open_file(PurePath(name).name) as copy:
        at = os.fstat(again.fileno()).st_mtime_ns
        while part := _part(again, name):
            if copy.read(len(part)) != part:
                return False
        return not copy.read(1) and os.fstat(again.fileno()).st_mtime_ns != at


def _part(original: BinaryIO, name: str) -> bytes:
    """Return the next part of a file; empty at its end. Raises `UnreadableError`."""
    with reading(name):
        return original.read(_PART_BYTES)
