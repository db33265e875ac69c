"""Change the folder `exports` of a run: each change is one rename, so an export is whole or absent at any moment.

Other users may write there. Every folder is opened by its name in the one above, and a link is never followed. All
functions block for as long as the storage does, and raise OSError. `bucket_exports` does the same in a bucket.
"""

import contextlib
import errno
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from sidecar.checkpoints.inspect import verify
from sidecar.errors import CheckpointError, StorageError
from sidecar.protocol.records import Checkpoint
from sidecar.retention.exports.export_manifest import ExportedFile, Manifest, files_of, read_manifest, write_manifest
from sidecar.retention.pins.names import is_temporary, removed_name
from sidecar.retention.pins.usage import pins_bytes
from sidecar.system.bucket_folder import BucketState
from sidecar.system.confined import Folder, open_folder

EXPORTS: Final = "exports"
BEST: Final = "best"
PINS: Final = "pins"

_TAKEN: Final = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


class OpenExports(Protocol):
    """Read and change the exports of a run. Methods raise OSError."""

    def names(self) -> list[str]:
        """Return the names of all exports that are whole."""

    def unfinished(self) -> list[str]:
        """Return the names of those that are being made or removed, which other nodes see."""

    def others(self) -> list[str]:
        """Return the names of entries that are not exports, except the best one's: somebody else made them."""

    def best(self) -> str | None:
        """Return the name of the best export; None if none is named.

        Raises `OSError` if that cannot be read: the best export is unknown then, and none may be removed.
        """

    def name_best(self, name: str) -> None:
        """Name the best export. Raises `FileExistsError` if something else has the place of that."""

    def name_none(self) -> None:
        """Name no export as the best one."""

    def manifest(self, name: str) -> Manifest | None:
        """Return the manifest of an export; None if there is none."""

    def describe(self, name: str, manifest: Manifest) -> None:
        """Write the manifest of an export."""

    def files(self, checkpoint: Checkpoint) -> tuple[ExportedFile, ...]:
        """Return the files of an exported checkpoint."""

    def take_pin(self, checkpoint: Checkpoint) -> bool:
        """Make an export of a pin, and return whether this call did it. The manifest must be in the pin already."""

    def give_back(self, name: str, require_room: Callable[[int], None]) -> bool:
        """Make a pin of an export, and return whether that was done: its checkpoint is to be evaluated again.

        `require_room` raises `NoRoomError` unless so many more bytes may be held.
        """

    def remove(self, name: str) -> None:
        """Remove an export."""

    def remove_leftovers(self, names: set[str]) -> set[str]:
        """Remove unfinished entries that were there at the last call, too, and return those that are there now.

        `names`: those of the last call. Another node may be working on one that is new.
        """

    def bytes(self) -> int:
        """Return what all exports hold."""


def opened_exports(root: Path, *, make: bool = False) -> contextlib.AbstractContextManager[OpenExports]:
    """Open the exports below the state directory of a run. `make`: make their folder if it is missing."""
    if not isinstance(root, BucketState):
        return _opened_folder(root, make=make)
    from sidecar.retention.exports.bucket_exports import BucketExports  # noqa: PLC0415 - only with a state in a bucket

    return contextlib.nullcontext(BucketExports(root))


@contextlib.contextmanager
def _opened_folder(root: Path, *, make: bool) -> Iterator[OpenExports]:
    with open_folder(root) as state, state.folder(EXPORTS, make=make) as exports:
        yield ExportFolder(root, exports)


@dataclass(frozen=True, slots=True)
class ExportFolder:
    """Change exports in a folder: `OpenExports` says what the methods do."""

    root: Path  # the state directory of the run
    folder: Folder  # its folder `exports`

    def names(self) -> list[str]:
        """Return the names of all folders but unfinished ones."""
        return [name for name, is_folder in self._entries() if is_folder]

    def unfinished(self) -> list[str]:
        """Return nothing: `remove_leftovers` knows them by their names."""
        return []

    def others(self) -> list[str]:
        """Return the names of entries that are not folders, except the link to the best one."""
        return [name for name, is_folder in self._entries() if not is_folder]

    def best(self) -> str | None:
        """Return the name to which the link `best` leads; None if there is no such link, or if it leads elsewhere."""
        return linked_export(self.folder)

    def name_best(self, name: str) -> None:
        """Let the link `best` lead to an export."""
        link_best(self.folder, name)

    def name_none(self) -> None:
        """Remove the link `best`, if there is one."""
        if self.best() is not None:
            with contextlib.suppress(FileNotFoundError):
                self.folder.unlink(BEST)

    def manifest(self, name: str) -> Manifest | None:
        """Return the manifest in the folder of an export."""
        with self.folder.folder(name) as folder:
            return read_manifest(folder)

    def describe(self, name: str, manifest: Manifest) -> None:
        """Write the manifest into the folder of an export."""
        with self.folder.folder(name) as folder:
            write_manifest(folder, manifest)

    def files(self, checkpoint: Checkpoint) -> tuple[ExportedFile, ...]:
        """Return the files that the format of an exported checkpoint names."""
        with self.folder.folder(checkpoint.folder) as folder:
            return files_of(folder, checkpoint)

    def take_pin(self, checkpoint: Checkpoint) -> bool:
        """Rename a pin into `exports`.

        An export of the same checkpoint that is whole wins, and the pin is removed. One that is damaged, or an entry of
        another kind under its name, is replaced.
        """
        name, exports = checkpoint.folder, self.folder
        with open_folder(self.root) as state, state.folder(PINS) as pins:
            try:
                pins.rename(name, name, exports)
            except FileNotFoundError:
                return False  # another node did it; or NFS sent the request twice
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                if self._is_whole(checkpoint):
                    remove_folder(pins, name)
                    return False
                exports.rename(name, removed_name())
                pins.rename(name, name, exports)
            exports.sync()
            pins.sync()
        return True

    def give_back(self, name: str, require_room: Callable[[int], None]) -> bool:
        """Rename an export to a pin, which takes no more room."""
        del require_room
        with open_folder(self.root) as state, state.folder(PINS, make=True) as pins:
            try:
                self.folder.rename(name, name, pins)
            except OSError as error:
                if error.errno in (*_TAKEN, errno.ENOENT):
                    return False  # it is pinned again already
                raise
            pins.sync()
            self.folder.sync()
        return True

    def remove(self, name: str) -> None:
        """Remove an export. Its name goes first, because half an export must never be read as a whole one."""
        remove_folder(self.folder, name)

    def remove_leftovers(self, names: set[str]) -> set[str]:
        """Remove what no node works on any more."""
        found = {name for name in self.folder.names() if is_temporary(name)}
        for name in found & names:
            with contextlib.suppress(OSError):
                self.folder.remove(name)
        return found

    def bytes(self) -> int:
        """Return the bytes of all files."""
        return pins_bytes(self.root / EXPORTS)

    def _entries(self) -> Iterator[tuple[str, bool]]:
        """Yield the names of all entries but the link and unfinished ones, each with whether it is a folder."""
        for name in self.folder.names():
            if name != BEST and not is_temporary(name):
                with contextlib.suppress(FileNotFoundError):
                    yield name, stat.S_ISDIR(self.folder.stat(name).st_mode)

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        """Return whether the entry with the name of a checkpoint's folder holds that checkpoint."""
        try:
            with self.folder.folder(checkpoint.folder) as folder:
                return verify(folder.path, checkpoint.name, checkpoint.format) == checkpoint.digest
        except (OSError, CheckpointError, StorageError):
            return False


def linked_export(exports: Folder) -> str | None:
    """Return the name to which the link `best` leads; None if there is no such link, or if it leads elsewhere.

    Raises `OSError` if the link cannot be read: the best export is unknown then, and none may be removed.
    """
    try:
        target = exports.readlink(BEST)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL):
            return None
        raise
    return None if "/" in target or target in ("", ".", "..") else target


def link_best(exports: Folder, name: str) -> None:
    """Let the link `best` lead to an export. Raises `FileExistsError` if something else than a link has its name."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISLNK(exports.stat(BEST).st_mode):
            path = str(exports.path / BEST)
            raise FileExistsError(errno.EEXIST, "it is not a link: move it away", path)
    temporary = removed_name()
    exports.symlink(temporary, name)
    try:
        exports.rename(temporary, BEST)
    except OSError:
        with contextlib.suppress(OSError):
            exports.unlink(temporary)
        raise
    exports.sync()


def remove_folder(folder: Folder, name: str) -> None:
    """Remove a folder by two steps: first it loses its name. Raises nothing if another node does the same."""
    temporary = removed_name()
    with contextlib.suppress(FileNotFoundError):
        folder.rename(name, temporary)
    with contextlib.suppress(OSError):
        folder.remove(temporary)  # `remove_leftovers` removes the rest
