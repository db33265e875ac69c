"""Open the best export of a run for a program that uploads a folder.

Exports are `exports/NAME@DIGEST/` in the run's state directory, each with a `manifest.json`; the link `exports/best`
names the best one. Other users may write there. So no link is followed, and the program does not get the folder itself:
it gets a private folder whose links lead to the files that were opened here.
"""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.publishing.sinks.sink import SinkUnavailableError
from sidecar.system.bucket_folder import BucketState
from sidecar.system.confined import Folder, open_folder

_MANIFEST: Final = "manifest.json"
_MOST_FILES: Final = 500  # each is open during the upload; a process may open 1024
_MOST_LEVELS: Final = 8


@dataclass(frozen=True, slots=True)
class Best:
    """Hold the best export: its name, a private folder that shows it, and the open files that this folder leads to."""

    name: str
    folder: Path
    descriptors: tuple[int, ...]


@contextlib.contextmanager
def opened_best(run_dir: Path, *, known: str | None = None) -> Iterator[Best | None]:
    """Open the best export while it is uploaded; None if there is none, if its name is known, or without a manifest.

    The process that uploads must inherit the descriptors. Raises `SinkUnavailableError` for a link or anything else
    that is not a folder or a file, and for too many files.
    """
    if isinstance(run_dir, BucketState):
        with _fetched_best(run_dir, known) as fetched:
            yield fetched
        return
    with contextlib.ExitStack() as stack:
        try:
            exports = stack.enter_context(_exports(run_dir))
            name = _name(exports)
            export = stack.enter_context(exports.folder(name))
            export.stat(_MANIFEST)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise SinkUnavailableError(f"{error.filename}: {error.strerror}") from error
        if name == known:
            yield None
            return
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sidecar-best-")))
        try:
            best = Best(name, place, tuple(_show(export, place, stack)))
        except OSError as error:
            raise SinkUnavailableError(f"{error.filename}: {error.strerror}") from error
        yield best


@contextlib.contextmanager
def _fetched_best(root: BucketState, known: str | None) -> Iterator[Best | None]:
    """Yield what was fetched of the best export in a bucket, in a private folder. Raises as `opened_best`."""
    from sidecar.retention.exports.bucket_exports import BucketExports  # noqa: PLC0415 - only with a state in a bucket

    with tempfile.TemporaryDirectory(prefix="sidecar-best-") as place:
        try:
            exports = BucketExports(root)
            name = exports.best()
            if name in (None, known) or name not in exports.names():
                name = None
            else:
                with open_folder(Path(place)) as folder:
                    exports.fetch(name, folder)
        except OSError as error:
            raise SinkUnavailableError(f"{error.filename}: {error.strerror}") from error
        yield None if name is None else Best(name, Path(place), ())


def _exports(run_dir: Path) -> Folder:
    with open_folder(run_dir) as state:
        return state.folder("exports")


def _name(exports: Folder) -> str:
    """Return the name to which the link leads. `Folder.folder` would open `a/b`, too."""
    name = os.readlink("best", dir_fd=exports.descriptor)
    if "/" in name:
        raise OSError(errno.EINVAL, "it does not lead to an export", str(exports.path / "best"))
    return name


def _show(export: Folder, place: Path, stack: contextlib.ExitStack) -> Iterator[int]:
    """Open each file of an export, make a link to it in a private folder, and yield its descriptor."""
    waiting, count = [(export, place, 0)], 0
    while waiting:
        folder, shown, level = waiting.pop()
        for name in folder.names():
            if stat.S_ISDIR(folder.stat(name).st_mode):
                if level == _MOST_LEVELS:
                    raise SinkUnavailableError(f"{folder.path / name}: more than {_MOST_LEVELS} folders are nested")
                (shown / name).mkdir()
                waiting.append((stack.enter_context(folder.folder(name)), shown / name, level + 1))
                continue
            count += 1
            if count > _MOST_FILES:
                raise SinkUnavailableError(f"{export.path} has more than {_MOST_FILES} files")
            descriptor = stack.enter_context(folder.open_file(name)).fileno()
            (shown / name).symlink_to(f"/proc/self/fd/{descriptor}")
            yield descriptor
