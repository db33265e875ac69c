"""Bring the files of a checkpoint into a new folder: by links where they are allowed, else by copies.

It blocks for as long as the storage does. The folder is open: nothing is written through a link.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import BinaryIO, Final

from sidecar.checkpoints.files import File, as_file, open_file, resolve, size_of
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.confined import Folder
from sidecar.durable import sync_file
from sidecar.entry_errors import Entry, Meaning, meaning
from sidecar.errors import IncompleteError, MustCopyError, UnreadableError
from sidecar.pins.disk_budget import DiskBudget

_MOST_OPEN: Final = 128
"""The most files of a checkpoint that are open at the same time. A process may have 1024."""

_NO_LINK: Final = (
    errno.EPERM,  # another user's file (fs.protected_hardlinks), or a filesystem without links
    errno.EXDEV,  # the state directory is on another filesystem
    errno.EMLINK,
    errno.EACCES,
    errno.ENOSYS,  # FUSE
    errno.ENOTSUP,
)
"""Why a link may be refused where a copy works."""

_PART_BYTES: Final = 1024 * 1024

_SMALL_BYTES: Final = 16 * 1024 * 1024
"""Every node copies this much itself: that takes less time than to wait for the copy of another node, and it protects
against deletion at once."""


def gather(discovered: DiscoveredCheckpoint, into: Folder, room: DiskBudget, *, copies: bool) -> tuple[File, ...]:
    """Link or copy each file, durably, and say which files of the trainer's these were.

    All that can be linked comes first, so that it is known what a copy of the rest takes before the first byte. Raises
    `MustCopyError`, `NoRoomError`, `UnreadableError`, and OSError of where it writes, or if a file is gone.
    """
    format_ = FORMATS[discovered.checkpoint.format]
    names = tuple(file.name for file in discovered.files)
    if not names:
        with reading(discovered.checkpoint.name):
            names = format_.inspect(discovered.folder, PurePath(discovered.checkpoint.name).name).files
    with contextlib.ExitStack() as stack:
        folders = _folders(into, names, stack)
        gathered: dict[str, File] = {}
        refused = False  # by one, so by all: each is a file of the same owner on the same storage
        for name in names:
            if refused or format_.written_in_place(name):
                continue
            linked = _link(discovered.folder, name, folders[_parent(name)])
            refused = linked is None
            if linked is not None:
                gathered[name] = linked
        rest = [name for name in names if name not in gathered]
        with reading(discovered.checkpoint.name):
            sizes = [size_of(discovered.folder, name) or 0 for name in rest]  # what is gone is told when it is copied
        if not copies and sum(sizes) > _SMALL_BYTES:
            raise MustCopyError(f"{sum(sizes)} bytes of {discovered.checkpoint.name} cannot be linked")
        # What is open can be copied though training deletes it meanwhile.
        opened = {name: stack.enter_context(_open(discovered.folder, name)) for name in rest[:_MOST_OPEN]}
        for place, name in enumerate(rest):
            room.require_copy(sum(sizes[place:]))  # training may have written meanwhile
            with opened.get(name) or _open(discovered.folder, name) as original:
                gathered[name] = _copy(original, name, folders[_parent(name)])
        for folder in folders.values():
            folder.sync()
    return tuple(gathered[name] for name in names)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Tell errors of the files that are read from those of the ones that are written.

    Errors of reading say nothing about the checkpoint, and the others are pinned all the same.
    """
    try:
        yield
    except OSError as error:
        if meaning(Entry.CHECKPOINT, error) is not Meaning.UNKNOWN:
            raise  # it is gone, or to be opened once more
        raise UnreadableError(f"{what} cannot be read: {error.strerror}") from error


def _folders(into: Folder, names: tuple[str, ...], stack: contextlib.ExitStack) -> dict[str, Folder]:
    """Return the folder for each file, by its path; those below `into` are made."""
    folders = {"": into}
    for parent in sorted({_parent(name) for name in names} - {""}):
        folders[parent] = stack.enter_context(into.folder(parent, make=True))
    return folders


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


@contextlib.contextmanager
def _open(folder: Path, name: str) -> Iterator[BinaryIO]:
    with contextlib.ExitStack() as stack:
        with reading(name):
            opened = stack.enter_context(open_file(folder, name))
        yield opened


def _link(source: Path, name: str, into: Folder) -> File | None:
    base = PurePath(name).name
    try:
        # Resolved, since a link to a link is not wanted; what is planted there meanwhile is not followed.
        os.link(resolve(source, name), base, dst_dir_fd=into.descriptor, follow_symlinks=False)
    except FileExistsError:  # the folder is this one's own, so it is the request that was sent twice
        pass
    except OSError as error:
        if error.errno in _NO_LINK:
            return None
        raise
    there = into.stat(base)
    if not stat.S_ISREG(there.st_mode):
        raise IncompleteError(f"{source / name} was replaced by something that is not a regular file")
    return as_file(name, there)


def _copy(original: BinaryIO, name: str, into: Folder) -> File:
    """Copy content and time of modification, durably."""
    with into.create_file(PurePath(name).name) as copy:
        while part := _part(original, name):
            copy.write(part)
        copy.flush()
        there = os.fstat(original.fileno())
        os.utime(copy.fileno(), ns=(there.st_atime_ns, there.st_mtime_ns))
        sync_file(copy)
    return as_file(name, there)


def _part(original: BinaryIO, name: str) -> bytes:
    with reading(name):
        return original.read(_PART_BYTES)
