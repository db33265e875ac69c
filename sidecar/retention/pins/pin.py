"""Pin checkpoints: protect them against the trainer's own clean-up while any node may still need them.

A pin is a folder `<pins>/<name>@<digest12>` that appears by one rename and disappears by one rename, so it is whole or
absent. Several daemons share the folder of pins and may pin or unpin the same checkpoint at once. All functions here
block. If links are refused, whole checkpoints are copied, in a separate thread instead of the storage thread.
"""

import contextlib
import errno
import json
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from sidecar.checkpoints.files import File
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.inspect import FETCHED, verify
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.errors import ChecksumError, CorruptError, IncompleteError, StorageError, UnreadableError, VanishedError
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Checkpoint
from sidecar.retention.pins.disk_budget import DiskBudget
from sidecar.retention.pins.link_or_copy import gather, reading
from sidecar.retention.pins.names import PIN_RECORD, removed_name, unfinished_name
from sidecar.system.bucket_folder import BucketFolder
from sidecar.system.confined import Folder, open_folder
from sidecar.system.durable import write_new
from sidecar.system.entry_errors import Entry, Meaning, meaning

TOUCH_SECONDS: Final = 15.0
"""The time between two touches of an unfinished pin. They show that its maker lives even if the pin does not grow."""

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
    """Pin a checkpoint and return it. If it is pinned already, return that pin.

    `copies`: whether to pin it even if more than a few MiB must be copied because links are refused. `check`: whether
    to compare all checksums of the gathered files, which will be evaluated, before they are a pin. `room`: the limits
    that are checked before each copy. `owner`: the name of this node, which marks its unfinished pins.

    After any error nothing is pinned: `MustCopyError` if links are refused and `copies` is not set, `NoRoomError`,
    `ChecksumError`, `VanishedError` if a file is gone, `UnreadableError` if files cannot be read now, `IncompleteError`
    if they have changed since the scan, so that another scan is due, or `StorageError` if the pin cannot be written.
    """
    checkpoint, pins_dir = discovered.checkpoint, pins_dir.absolute()
    folder = pins_dir / checkpoint.folder
    pinned = replace(discovered, checkpoint=replace(checkpoint, pin=f"{pins_dir.name}/{folder.name}"), folder=folder)
    is_second_try = False
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
            match meaning(Entry.CHECKPOINT, error, again=is_second_try):
                case Meaning.RETRY:  # NFS: another client replaced or removed a file, so its name is opened again
                    is_second_try = True
                    continue
                case Meaning.GONE:
                    raise VanishedError(f"{checkpoint.name} was deleted before it could be pinned") from error
            if error.errno == errno.ESTALE:
                raise UnreadableError(f"{checkpoint.name} cannot be read: {error.strerror}") from error
            raise StorageError(f"cannot pin {checkpoint.name} to {folder}: {_reason(checkpoint, error)}") from error


def unpin(checkpoint: Checkpoint, pins_dir: Path) -> None:
    """Remove the pin of a checkpoint, if there is one. Raises `StorageError`."""
    temporary = removed_name()
    try:
        with open_folder(pins_dir.parent) as state, state.folder(pins_dir.name) as pins:
            try:
                # The name goes first, because a pin that is half removed must never be read as a pin.
                pins.rename(checkpoint.folder, temporary)
            except FileNotFoundError:
                pass  # it is not pinned; or NFS sent the request twice, and the pin has the other name now
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                _remove_in_place(checkpoint.folder, pins)
            with contextlib.suppress(OSError):
                pins.remove(temporary)  # a later cleanup removes the rest
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot unpin {checkpoint.name} in {pins_dir}: {_reason(checkpoint, error)}") from error


def remove_rest(name: str, pins_dir: Path) -> None:
    """Remove the rest of an unfinished pin, or of a pin that was being removed. Raises OSError."""
    with open_folder(pins_dir.parent) as state, state.folder(pins_dir.name) as pins:
        pins.remove(name)


def _remove_in_place(name: str, pins: Folder) -> None:
    """Remove a pin whose other name does not fit on a full disk: its record goes first, its name last."""
    with pins.folder(name) as folder, contextlib.suppress(FileNotFoundError):
        folder.unlink(PIN_RECORD)
    pins.remove(name)


def _opened(pins_dir: Path, discovered: DiscoveredCheckpoint) -> Folder:
    """Open the folder of pins, and create it if needed. A checkpoint directory that is gone is not created again."""
    try:
        if not pins_dir.parent.is_dir():
            if not discovered.folder.is_dir():
                raise VanishedError(f"{discovered.folder} is gone, and {discovered.checkpoint.name} with it")
            pins_dir.parent.mkdir(parents=True, exist_ok=True)
        with open_folder(pins_dir.parent) as state:
            return state.folder(pins_dir.name, make=True)
    except OSError as error:
        raise StorageError(f"cannot pin to {pins_dir}: {_reason(discovered.checkpoint, error)}") from error


def _is_pinned(checkpoint: Checkpoint, pins: Folder) -> bool:
    """Return whether a checkpoint is pinned already. Raises OSError if something else has the pin's name."""
    try:
        status = pins.stat(checkpoint.folder)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(pins.path / checkpoint.folder))
    return True


def _make(
    discovered: DiscoveredCheckpoint, pins: Folder, room: DiskBudget, *, copies: bool, check: bool, owner: str
) -> tuple[File, ...]:
    """Gather the files in a temporary folder, check them there, and give that folder the name of the pin."""
    checkpoint = discovered.checkpoint
    with _temporary_folder(pins, checkpoint, owner) as temporary:
        files = gather(discovered, temporary, room, copies=copies)
        write_new(temporary, PIN_RECORD, dumps(replace(checkpoint, pin=None)))
        if isinstance(discovered.folder, BucketFolder):
            _write_digests(discovered, discovered.folder, files, temporary)
        temporary.sync()
        _require_unchanged(discovered, temporary.path, files)
        if check:
            with reading(checkpoint.name):
                FORMATS[checkpoint.format].check(temporary.path, PurePath(checkpoint.name).name)
        _publish(temporary, pins, checkpoint.folder)
    return files


@contextlib.contextmanager
def _temporary_folder(pins: Folder, checkpoint: Checkpoint, owner: str) -> Iterator[Folder]:
    """Create a folder that is removed at the end unless it was renamed. Its name shows other nodes the checkpoint."""
    name = unfinished_name(checkpoint, owner)
    with contextlib.ExitStack() as stack:
        try:
            with contextlib.suppress(FileExistsError):  # nobody else uses this name: NFS sent the request twice
                pins.make_folder(name)
            stack.callback(_try_to_remove, name, pins)
            temporary = stack.enter_context(pins.folder(name))
        except OSError as error:  # not about a file of the checkpoint, so the caller must not take it as vanished
            raise StorageError(f"cannot create {pins.path / name}: {error.strerror}") from error
        with _touched(temporary):
            try:
                yield temporary
            except (FileNotFoundError, VanishedError) as error:
                if _exists(name, pins):
                    raise
                raise StorageError(f"{temporary.path} was removed before it was finished: it is made again") from error


def _try_to_remove(name: str, pins: Folder) -> None:
    """Remove a temporary folder. A later cleanup removes it if this fails."""
    with contextlib.suppress(OSError):
        pins.remove(name)


def _exists(name: str, pins: Folder) -> bool:
    """Return whether a folder of that name exists. Raises OSError."""
    try:
        pins.stat(name)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def _touched(folder: Folder) -> Iterator[None]:
    """Touch a folder regularly: while its maker fsyncs or checks it, it does not grow, and would look abandoned."""
    is_finished, descriptor = threading.Event(), os.dup(folder.descriptor)

    def touch() -> None:
        while not is_finished.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(descriptor)
        os.close(descriptor)

    try:
        threading.Thread(target=touch, name="pin-touch", daemon=True).start()
    except RuntimeError:  # no thread can be started now
        os.close(descriptor)
        raise
    try:
        yield
    finally:
        is_finished.set()


def _require_unchanged(discovered: DiscoveredCheckpoint, temporary: Path, files: tuple[File, ...]) -> None:
    """Raise an error if the gathered files are not the checkpoint that was found, as after a change by the trainer."""
    checkpoint = discovered.checkpoint
    found = {file.name: file for file in discovered.files}
    for file in files:
        # The digest relies on the index for the tensors, so only this shows a new shard with the old index.
        if file.name in found and found[file.name].content != file.content:
            raise IncompleteError(f"{checkpoint.name}: {file.name} was replaced while it was pinned")
    try:
        digest = verify(temporary, checkpoint.name, checkpoint.format)
    except StorageError as error:
        raise UnreadableError(str(error)) from error
    if digest != checkpoint.digest:
        raise IncompleteError(f"{checkpoint.name} has other content than when it was found")


def _write_digests(
    discovered: DiscoveredCheckpoint, folder: BucketFolder, files: tuple[File, ...], temporary: Folder
) -> None:
    """Write the digests of what was fetched into its pin: by the etags as they are now, and by the content."""
    checkpoint = discovered.checkpoint
    by_etags = folder.source.digest(folder / file.name for file in files)
    by_content = verify(temporary.path, checkpoint.name, checkpoint.format)
    write_new(temporary, FETCHED, json.dumps({"digest": by_etags, "content": by_content}).encode())


def _publish(temporary: Folder, pins: Folder, name: str) -> None:
    """Give the temporary folder the name of the pin, unless another node made the pin meanwhile."""
    try:
        pins.rename(temporary.path.name, name)  # fails if the pin exists, because its folder is not empty
    except FileNotFoundError:
        if pins.stat(name).st_ino != os.fstat(temporary.descriptor).st_ino:  # else NFS sent the request twice
            raise
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    pins.sync()


def _reason(checkpoint: Checkpoint, error: OSError) -> str:
    """Return the problem in the folder of pins, with a remedy if there is one."""
    if error.errno == errno.ENAMETOOLONG:
        return (
            f"the name {checkpoint.folder} or one of its files' is longer than the filesystem allows: "
            "give checkpoints shorter names, or let state_dir lie on another filesystem"
        )
    if error.errno in _NOT_A_FOLDER:
        return f"{error.filename} is a link or a file where a folder is expected: move it away"
    return error.strerror or str(error)
