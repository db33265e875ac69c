"""Pins: checkpoints held against the trainer's own clean-up, while anybody may still need them.

A pin is a folder `<pins>/<name>@<digest12>` that appears by one rename and goes by one rename, so it is whole or
absent. Several daemons share the folder of pins and may pin or unpin the same checkpoint at once. Everything here
blocks; where links are refused, whole checkpoints are copied, which is a child's work, not the I/O thread's.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import BinaryIO, Final

from sidecar.checkpoints.files import File, as_file, open_file, resolve, size_of
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.found import Found
from sidecar.checkpoints.held import PIN_RECORD, being_made
from sidecar.checkpoints.room import Room
from sidecar.checkpoints.single import verify
from sidecar.errors import (
    ChecksumError,
    CorruptError,
    IncompleteError,
    MustCopyError,
    StorageError,
    VanishedError,
)
from sidecar.records import Checkpoint, dumps

_TEMPORARY: Final = ".tmp-"

_MOST_OPEN: Final = 128
"""Of one checkpoint's files, at the same time: a process may have 1024."""

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
_OWN_SECONDS: Final = 60.0  # a copy that goes on touches its folder far more often
_LIFE: Final = secrets.token_hex(4)  # of this process

_SMALL_BYTES: Final = 16 * 1024 * 1024
"""What every node copies by itself: it is over before others could leave it to one, and holds against deletion."""


def pin(
    found: Found,
    pins_dir: Path,
    *,
    copies: bool = True,
    check: bool = False,
    room: Room = Room(),  # noqa: B008 - frozen
    owner: str = "",
) -> Found:
    """Hold a checkpoint; if it is held already that is the answer.

    `copies`: also if more than a few MiB must be copied, as links are refused. `check`: compare all checksums first, of
    what was gathered, since that is what will be evaluated. `room`: asked before anything is copied. `owner`: as for
    `clean`.

    Raises:
        MustCopyError: they are; nothing is held.
        NoRoomError: it would have to be copied, and there is not enough room; nothing is held.
        ChecksumError: a checksum does not match; nothing is held.
        VanishedError: its files are gone.
        IncompleteError: they are no longer what was found, or cannot be read: look again.
        StorageError: the pin cannot be written.
    """
    checkpoint = found.checkpoint
    folder = pins_dir.absolute() / checkpoint.folder
    pinned = replace(found, checkpoint=replace(checkpoint, pin=f"{folder.parent.name}/{folder.name}"), folder=folder)
    if folder.is_dir():
        return pinned
    if not found.folder.is_dir():  # else the state directory inside it would bring it back
        raise VanishedError(f"{found.folder} is gone, and {checkpoint.name} with it")
    try:
        with _temporary_folder(folder.parent, checkpoint, owner) as temporary:
            files = _gather(found, temporary, room, copies=copies)
            _require_unchanged(found, temporary, files)
            if check:
                with _reading(checkpoint.name):
                    FORMATS[checkpoint.format].check(temporary, PurePath(checkpoint.name).name)
            _publish(temporary, folder)
    except ChecksumError:
        raise
    except CorruptError as error:
        raise IncompleteError(f"{checkpoint.name} changed while it was pinned: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):  # ESTALE: NFS, another client removed it
            raise VanishedError(f"{checkpoint.name} was deleted before it could be pinned") from error
        raise StorageError(f"cannot pin {checkpoint.name} to {folder}: {error.strerror}") from error
    return replace(pinned, files=files)


def unpin(checkpoint: Checkpoint, pins_dir: Path) -> None:
    """Let a checkpoint go; one that is not pinned is no error."""
    temporary = pins_dir / f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        # Away with the name first: a pin that is half removed must never be read as one.
        (pins_dir / checkpoint.folder).rename(temporary)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot unpin {checkpoint.name} in {pins_dir}: {error.strerror}") from error
    shutil.rmtree(temporary, ignore_errors=True)  # what is left is removed by `clean`


def pins_bytes(pins_dir: Path) -> int:
    """Bytes in all pins, counting a linked file in full: what they would occupy once the trainer deleted its own."""
    return sum(stat.st_size for folder in _folders(pins_dir) for stat in _stats(folder))


def pins_bytes_alone(pins_dir: Path) -> int:
    """Bytes that would be free without the pins: of copies, and of files that the trainer has deleted."""
    return sum(stat.st_size for folder in _folders(pins_dir) for stat in _stats(folder) if stat.st_nlink == 1)


def bytes_copied(pins_dir: Path) -> dict[str, int]:
    """How far pins in the making are, in bytes, by the first 12 digits of the checkpoints' digests."""
    copied: dict[str, int] = {}
    for folder in _folders(pins_dir):
        if (digest := being_made(folder.name)) is not None:
            copied[digest] = max(copied.get(digest, 0), sum(stat.st_size for stat in _stats(folder)))
    return copied


def clean(pins_dir: Path, *, older_than_seconds: float = 86400.0, owner: str | None = None) -> int:
    """Remove what crashed daemons left half pinned or half removed; returns how many folders.

    Only what nobody touched for `older_than_seconds`, by the storage's own clock, since others are at work here, and to
    compare all checksums of a copy touches nothing. What this `owner` began in a former life goes after a minute: only
    a second daemon under its name, which must not be, could be at it.
    """
    left = [folder for folder in _folders(pins_dir) if folder.name.startswith(_TEMPORARY)]
    now, removed = _storage_time(pins_dir) if left else 0.0, 0
    for folder in left:
        # The ctime, as the times of modification are copied from the checkpoint.
        newest = max((stat.st_ctime for stat in _stats(folder, itself=True)), default=float("inf"))
        of_former_life = owner is not None and f"-{_tag(owner)}-" in folder.name and _LIFE not in folder.name
        if newest < now - (min(_OWN_SECONDS, older_than_seconds) if of_former_life else older_than_seconds):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _tag(owner: str) -> str:
    return hashlib.sha256(owner.encode(errors="surrogateescape")).hexdigest()[:8]


def _storage_time(pins_dir: Path) -> float:
    """What the clock of the storage says, which need not be this machine's; minus infinity if it does not."""
    probe = pins_dir / f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        probe.mkdir()
        try:
            return probe.stat().st_ctime
        finally:
            probe.rmdir()
    except OSError:
        return float("-inf")


@contextlib.contextmanager
def _temporary_folder(parent: Path, checkpoint: Checkpoint, owner: str) -> Iterator[Path]:
    """A new folder that is removed, unless it was renamed; it tells other nodes for which checkpoint it is."""
    temporary = parent / f"{_TEMPORARY}{checkpoint.digest[:12]}-{_tag(owner)}-{_LIFE}{secrets.token_hex(4)}"
    try:
        temporary.mkdir(parents=True)
    except OSError as error:  # no file of the checkpoint is meant, so not for the caller to read as vanished
        raise StorageError(f"cannot create {temporary}: {error.strerror}") from error
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _gather(found: Found, temporary: Path, room: Room, *, copies: bool) -> tuple[File, ...]:
    """Link or copy each file, and say which files of the trainer's these were.

    All that can be linked comes first, so that it is known what a copy of the rest takes before the first byte.
    """
    format_ = FORMATS[found.checkpoint.format]
    basename = PurePath(found.checkpoint.name).name
    names = tuple(file.name for file in found.files) or format_.inspect(found.folder, basename).files
    gathered: dict[str, File] = {}
    refused = False  # by one, so by all: each is a file of the same owner on the same storage
    for name in names:
        (temporary / name).parent.mkdir(parents=True, exist_ok=True)
        if refused or format_.written_in_place(name):
            continue
        linked = _link(found.folder, name, temporary)
        refused = linked is None
        if linked is not None:
            gathered[name] = linked
    rest = [name for name in names if name not in gathered]
    sizes = [size_of(found.folder, name) or 0 for name in rest]  # what is gone is told when it is copied
    if not copies and sum(sizes) > _SMALL_BYTES:
        raise MustCopyError(f"{sum(sizes)} bytes of {found.checkpoint.name} cannot be linked")
    with contextlib.ExitStack() as stack:  # what is open can be copied though training deletes it meanwhile
        opened = {name: stack.enter_context(_open(found.folder, name)) for name in rest[:_MOST_OPEN]}
        for place, name in enumerate(rest):
            room.require_copy(sum(sizes[place:]))  # training may have written meanwhile
            with opened.get(name) or _open(found.folder, name) as original:
                gathered[name] = _copy(original, name, temporary)
    files = [gathered[name] for name in names]
    for inner in {parent for name in names for parent in (temporary / name).parents if temporary in parent.parents}:
        _sync(inner)
    _write_record(found.checkpoint, temporary)
    _sync(temporary)
    return tuple(files)


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """What cannot be read is the trouble of one checkpoint, and no reason to hold none of the others."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            raise
        raise IncompleteError(f"{what} cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def _open(folder: Path, name: str) -> Iterator[BinaryIO]:
    with contextlib.ExitStack() as stack:
        with _reading(name):
            opened = stack.enter_context(open_file(folder, name))
        yield opened


def _link(source: Path, name: str, temporary: Path) -> File | None:
    try:
        os.link(resolve(source, name), temporary / name)  # resolved: link(2) does not follow a link, it links the link
    except OSError as error:
        if error.errno in _NO_LINK:
            return None
        raise
    return as_file(name, (temporary / name).stat())


def _copy(original: BinaryIO, name: str, temporary: Path) -> File:
    """Copy content and time of modification, durably."""
    with (temporary / name).open("xb") as copy:
        while part := _part(original, name):
            copy.write(part)
        copy.flush()
        stat = os.fstat(original.fileno())
        os.utime(copy.fileno(), ns=(stat.st_atime_ns, stat.st_mtime_ns))
        os.fsync(copy.fileno())
    return as_file(name, stat)


def _part(original: BinaryIO, name: str) -> bytes:
    with _reading(name):
        return original.read(_PART_BYTES)


def _require_unchanged(found: Found, temporary: Path, files: tuple[File, ...]) -> None:
    """Check what was gathered, there: the trainer may have replaced one file and not yet the other."""
    checkpoint = found.checkpoint
    then = {file.name: file for file in found.files}
    for file in files:
        # The digest trusts the index about the tensors, so a new shard beside the old index shows here only.
        if file.name in then and then[file.name].content != file.content:
            raise IncompleteError(f"{checkpoint.name}: {file.name} was replaced while it was pinned")
    try:
        digest = verify(temporary, checkpoint.name, checkpoint.format)
    except StorageError as error:
        raise IncompleteError(str(error)) from error
    if digest != checkpoint.digest:
        raise IncompleteError(f"{checkpoint.name} has other content than when it was found")


def _write_record(checkpoint: Checkpoint, temporary: Path) -> None:
    with (temporary / PIN_RECORD).open("xb") as file:
        file.write(dumps(replace(checkpoint, pin=None)))
        file.flush()
        os.fsync(file.fileno())


def _publish(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)  # onto a folder that is not empty it fails, so it is create-if-absent
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    _sync(folder.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _folders(pins_dir: Path) -> list[Path]:
    try:
        with os.scandir(pins_dir) as entries:
            return [pins_dir / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read the pins in {pins_dir}: {error.strerror}") from error


def _stats(folder: Path, *, itself: bool = False) -> list[os.stat_result]:
    """Of the files in a pin and its sub-folders; what vanishes meanwhile is left out."""
    stats = []
    with contextlib.suppress(FileNotFoundError):
        if itself:
            stats.append(folder.stat())
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.name == PIN_RECORD and not itself:
                        continue  # a few bytes of this program's own
                    if entry.is_dir(follow_symlinks=False):
                        stats += _stats(folder / entry.name, itself=itself)
                    else:
                        stats.append(entry.stat(follow_symlinks=False))
    return stats
