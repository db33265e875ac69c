"""Pin checkpoints: protect them against the trainer's own clean-up while any node may still need them.

A pin is a folder `<pins>/<name>@<digest12>` that appears by one rename and goes by one rename, so it is whole or
absent. Several daemons share the folder of pins and may pin or unpin the same checkpoint at once. Everything here
blocks. Where links are refused, whole checkpoints are copied, in a thread of its own instead of the I/O thread.
"""

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from sidecar.checkpoints.files import File
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.inspect import verify
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.codec import dumps
from sidecar.confined import Folder, open_folder
from sidecar.durable import write_new
from sidecar.entry_errors import Entry, Meaning, meaning
from sidecar.errors import ChecksumError, CorruptError, IncompleteError, StorageError, UnreadableError, VanishedError
from sidecar.pins.disk_budget import DiskBudget
from sidecar.pins.link_or_copy import gather, reading
from sidecar.pins.names import PIN_RECORD, making_name, removing_name
from sidecar.records import Checkpoint

TOUCH_SECONDS: Final = 15.0
"""How often a pin in the making is touched, so that others see that its maker lives while nothing of it grows."""

_NOT_A_FOLDER: Final = (errno.ELOOP, errno.ENOTDIR)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def pin(
    discovered: DiscoveredCheckpoint,
    pins_dir: Path,
    *,
    copies: bool = True,
    check: bool = False,
    room: DiskBudget = DiskBudget(),  # noqa: B008 - frozen
    owner: str = "",
) -> DiscoveredCheckpoint:
    """Pin a checkpoint and return it; if it is pinned already, return that pin.

    `copies`: also if more than a few MiB must be copied, as links are refused. `check`: compare all checksums first, of
    what was gathered, since that is what will be evaluated. `room`: asked before anything is copied. `owner`: the name
    of this node, by which it knows later what it left half made.

    Raises:
        MustCopyError: links are refused and `copies` is not set; nothing is pinned.
        NoRoomError: it would have to be copied, and there is not enough room; nothing is pinned.
        ChecksumError: a checksum does not match; nothing is pinned.
        VanishedError: one of its files is gone.
        UnreadableError: its files cannot be read now.
        IncompleteError: they are no longer what was found: scan again.
        StorageError: the pin cannot be written.
    """
    checkpoint, pins_dir = discovered.checkpoint, pins_dir.absolute()
    folder = pins_dir / checkpoint.folder
    pinned = replace(discovered, checkpoint=replace(checkpoint, pin=f"{pins_dir.name}/{folder.name}"), folder=folder)
    again = False
    while True:
        try:
            with _opened(pins_dir, discovered) as pins:
                if _is_pinned(checkpoint, pins):
                    return pinned
                return replace(pinned, files=_make(discovered, pins, room, copies=copies, check=check, owner=owner))
        except ChecksumError:
            raise
        except CorruptError as error:
            raise IncompleteError(f"{checkpoint.name} changed while it was pinned: {error}") from error
        except OSError as error:
            match meaning(Entry.CHECKPOINT, error, again=again):
                case Meaning.RETRY:  # NFS: another client replaced or removed it, which its name tells
                    again = True
                    continue
                case Meaning.GONE:
                    raise VanishedError(f"{checkpoint.name} was deleted before it could be pinned") from error
            if error.errno == errno.ESTALE:
                raise UnreadableError(f"{checkpoint.name} cannot be read: {error.strerror}") from error
            raise StorageError(f"cannot pin {checkpoint.name} to {folder}: {_reason(checkpoint, error)}") from error


def unpin(checkpoint: Checkpoint, pins_dir: Path) -> None:
    """Remove the pin of a checkpoint, if there is one. Raises `StorageError`."""
    temporary = removing_name()
    try:
        with open_folder(pins_dir.parent) as state, state.folder(pins_dir.name) as pins:
            try:
                # Away with the name first: a pin that is half removed must never be read as one.
                pins.rename(checkpoint.folder, temporary)
            except FileNotFoundError:
                pass  # it is not pinned; or the request was sent twice, and it bears the other name now
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                _remove_in_place(checkpoint.folder, pins)
            with contextlib.suppress(OSError):
                pins.remove(temporary)  # what is left of it is removed later
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot unpin {checkpoint.name} in {pins_dir}: {_reason(checkpoint, error)}") from error


def remove(name: str, pins_dir: Path) -> None:
    """Remove what was left of a pin in the making, or of one that was being removed. Raises OSError."""
    with open_folder(pins_dir.parent) as state, state.folder(pins_dir.name) as pins:
        pins.remove(name)


def _remove_in_place(name: str, pins: Folder) -> None:
    """Remove a pin where a full disk has no room for its other name: what it is goes first, its name last."""
    with pins.folder(name) as folder, contextlib.suppress(FileNotFoundError):
        folder.unlink(PIN_RECORD)
    pins.remove(name)


@contextlib.contextmanager
def _opened(pins_dir: Path, discovered: DiscoveredCheckpoint) -> Iterator[Folder]:
    """Return the folder of pins; it is made, unless the checkpoints' directory is gone and that would bring it back."""
    with contextlib.ExitStack() as stack:
        try:
            if not pins_dir.parent.is_dir():
                if not discovered.folder.is_dir():
                    raise VanishedError(f"{discovered.folder} is gone, and {discovered.checkpoint.name} with it")
                pins_dir.parent.mkdir(parents=True, exist_ok=True)
            state = stack.enter_context(open_folder(pins_dir.parent))
            pins = stack.enter_context(state.folder(pins_dir.name, make=True))
        except OSError as error:
            raise StorageError(f"cannot pin to {pins_dir}: {_reason(discovered.checkpoint, error)}") from error
        yield pins


def _is_pinned(checkpoint: Checkpoint, pins: Folder) -> bool:
    """Return whether it is pinned already; raises OSError if its pin could not be called what it must be called."""
    try:
        there = pins.stat(checkpoint.folder)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(there.st_mode):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(pins.path / checkpoint.folder))
    return True


def _make(
    discovered: DiscoveredCheckpoint, pins: Folder, room: DiskBudget, *, copies: bool, check: bool, owner: str
) -> tuple[File, ...]:
    """Gather the files in a folder of their own, check them there, and give it the name of the pin."""
    checkpoint = discovered.checkpoint
    with _temporary_folder(pins, checkpoint, owner) as temporary:
        files = gather(discovered, temporary, room, copies=copies)
        _write_record(checkpoint, temporary)
        temporary.sync()
        _require_unchanged(discovered, temporary.path, files)
        if check:
            with reading(checkpoint.name):
                FORMATS[checkpoint.format].check(temporary.path, PurePath(checkpoint.name).name)
        _publish(temporary, pins, checkpoint.folder)
    return files


@contextlib.contextmanager
def _temporary_folder(pins: Folder, checkpoint: Checkpoint, owner: str) -> Iterator[Folder]:
    """A new folder that is removed, unless it was renamed; it tells other nodes for which checkpoint it is."""
    name = making_name(checkpoint, owner)
    with contextlib.ExitStack() as stack:
        try:
            with contextlib.suppress(FileExistsError):  # nobody else makes this name: the request was sent twice
                pins.make_folder(name)
            stack.callback(_remove, name, pins)
            temporary = stack.enter_context(pins.folder(name))
        except OSError as error:  # no file of the checkpoint is meant, so not for the caller to read as vanished
            raise StorageError(f"cannot create {pins.path / name}: {error.strerror}") from error
        with _touched(temporary):
            try:
                yield temporary
            except (FileNotFoundError, VanishedError) as error:
                if _stands(name, pins):
                    raise
                raise StorageError(f"{temporary.path} was removed while it was made: it begins anew") from error


def _remove(name: str, pins: Folder) -> None:
    with contextlib.suppress(OSError):
        pins.remove(name)


def _stands(name: str, pins: Folder) -> bool:
    try:
        pins.stat(name)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def _touched(folder: Folder) -> Iterator[None]:
    """Touch a folder now and then: what is made durable or checked does not grow, and its maker lives all the same."""
    over, descriptor = threading.Event(), os.dup(folder.descriptor)

    def touch() -> None:
        while not over.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(descriptor)
        os.close(descriptor)

    threading.Thread(target=touch, name="pin-touch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _require_unchanged(discovered: DiscoveredCheckpoint, temporary: Path, files: tuple[File, ...]) -> None:
    """Check what was gathered, there: the trainer may have replaced one file and not yet the other."""
    checkpoint = discovered.checkpoint
    then = {file.name: file for file in discovered.files}
    for file in files:
        # The digest trusts the index about the tensors, so a new shard beside the old index shows here only.
        if file.name in then and then[file.name].content != file.content:
            raise IncompleteError(f"{checkpoint.name}: {file.name} was replaced while it was pinned")
    try:
        digest = verify(temporary, checkpoint.name, checkpoint.format)
    except StorageError as error:
        raise UnreadableError(str(error)) from error
    if digest != checkpoint.digest:
        raise IncompleteError(f"{checkpoint.name} has other content than when it was found")


def _write_record(checkpoint: Checkpoint, temporary: Folder) -> None:
    write_new(temporary, PIN_RECORD, dumps(replace(checkpoint, pin=None)))


def _publish(temporary: Folder, pins: Folder, name: str) -> None:
    try:
        pins.rename(temporary.path.name, name)  # onto a folder that is not empty it fails, so it is create-if-absent
    except FileNotFoundError:
        if pins.stat(name).st_ino != os.fstat(temporary.descriptor).st_ino:  # else the request was sent twice
            raise
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    pins.sync()


def _reason(checkpoint: Checkpoint, error: OSError) -> str:
    """Return what went wrong where pins are written, and what to do."""
    if error.errno == errno.ENAMETOOLONG:
        return (
            f"the name {checkpoint.folder} or one of its files' is longer than the filesystem allows: "
            "give checkpoints shorter names, or let state_dir lie on another filesystem"
        )
    if error.errno in _NOT_A_FOLDER:
        return f"{error.filename} is a link or a file where a folder is expected: move it away"
    return error.strerror or str(error)
