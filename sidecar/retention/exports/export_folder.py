"""Change the folder `exports` of a run: each change is one rename, so an export is whole or absent at any moment.

Other users may write there. Every folder is opened by its name in the one above, and a link is never followed. All
functions block for as long as the storage does, and raise OSError.
"""

import contextlib
import errno
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sidecar.checkpoints.inspect import verify
from sidecar.errors import CheckpointError, StorageError
from sidecar.protocol.records import Checkpoint
from sidecar.retention.pins.names import is_temporary, removed_name
from sidecar.system.confined import Folder, open_folder

EXPORTS: Final = "exports"
BEST: Final = "best"

_PINS: Final = "pins"
_TAKEN: Final = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def opened_exports(root: Path) -> Folder:
    """Open the folder `exports` below the state directory of a run."""
    with open_folder(root) as state:
        return state.folder(EXPORTS)


def names_in(exports: Folder) -> list[str]:
    """Return the names of all folders but unfinished ones."""
    return [name for name, is_folder in _entries(exports) if is_folder]


def others_in(exports: Folder) -> list[str]:
    """Return the names of entries that are not folders, except the link to the best one: somebody else made them."""
    return [name for name, is_folder in _entries(exports) if not is_folder]


def take_pin(root: Path, checkpoint: Checkpoint) -> bool:
    """Rename a pin into `exports`, and return whether this call did it. The manifest must be in the pin already.

    An export of the same checkpoint that is whole wins, and the pin is removed. One that is damaged, or an entry of
    another kind under its name, is replaced.
    """
    name = checkpoint.folder
    with open_folder(root) as state, state.folder(_PINS) as pins, state.folder(EXPORTS, make=True) as exports:
        try:
            pins.rename(name, name, exports)
        except FileNotFoundError:
            return False  # another node did it; or NFS sent the request twice
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            if _is_whole(exports, checkpoint):
                _remove(pins, name)
                return False
            exports.rename(name, removed_name())
            pins.rename(name, name, exports)
        exports.sync()
        pins.sync()
    return True


def give_back(exports: Folder, root: Path, name: str) -> bool:
    """Rename an export to a pin, and return whether that was done: its checkpoint is to be evaluated again."""
    with open_folder(root) as state, state.folder(_PINS, make=True) as pins:
        try:
            exports.rename(name, name, pins)
        except OSError as error:
            if error.errno in (*_TAKEN, errno.ENOENT):
                return False  # it is pinned again already
            raise
        pins.sync()
        exports.sync()
    return True


def remove_export(exports: Folder, name: str) -> None:
    """Remove an export. Its name goes first, because half an export must never be read as a whole one."""
    _remove(exports, name)


def remove_leftovers(exports: Folder, names: set[str]) -> set[str]:
    """Remove unfinished entries that were there at the last call, too, and return those that are there now.

    `names`: those of the last call. Another node may be working on one that is new.
    """
    found = {name for name in exports.names() if is_temporary(name)}
    for name in found & names:
        with contextlib.suppress(OSError):
            exports.remove(name)
    return found


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


def unlink_best(exports: Folder) -> None:
    """Remove the link `best`, if there is one."""
    if linked_export(exports) is not None:
        with contextlib.suppress(FileNotFoundError):
            exports.unlink(BEST)


def _entries(exports: Folder) -> Iterator[tuple[str, bool]]:
    """Yield the names of all entries but the link and unfinished ones, each with whether it is a folder."""
    for name in exports.names():
        if name != BEST and not is_temporary(name):
            with contextlib.suppress(FileNotFoundError):
                yield name, stat.S_ISDIR(exports.stat(name).st_mode)


def _remove(folder: Folder, name: str) -> None:
    temporary = removed_name()
    with contextlib.suppress(FileNotFoundError):
        folder.rename(name, temporary)
    with contextlib.suppress(OSError):
        folder.remove(temporary)  # `remove_leftovers` removes the rest


def _is_whole(exports: Folder, checkpoint: Checkpoint) -> bool:
    """Return whether the entry with the name of a checkpoint's folder holds that checkpoint."""
    try:
        with exports.folder(checkpoint.folder) as folder:
            return verify(folder.path, checkpoint.name, checkpoint.format) == checkpoint.digest
    except (OSError, CheckpointError, StorageError):
        return False
