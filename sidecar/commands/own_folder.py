"""Put a checkpoint into a folder of its own for one evaluation, as the pin of a daemon is.

`sidecar eval` and `sidecar check` load from there. A task that reads a file next to the checkpoint would otherwise work
with them, and fail in a daemon, whose workers load from a pin.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import open_file, resolve
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.inspect import verify
from sidecar.errors import EvaluationFailedError, StorageError, VanishedError
from sidecar.protocol.records import Checkpoint
from sidecar.system.bucket_folder import BucketFolder, ObjectFile, place_of
from sidecar.system.confined import open_folder

_PREFIX: Final = ".checkpoint-"
_OLD_SECONDS: Final = 86400.0  # a command that was killed did not remove its folder

_SMALL_BYTES: Final = 16 * 1024 * 1024
"""A file up to this size is copied if it cannot be linked. A larger one becomes a symbolic link."""


@contextlib.contextmanager
def in_own_folder(path: Path, checkpoint: Checkpoint, inside: Path) -> Iterator[Path]:
    """Yield the path of the checkpoint in a new folder in `inside`, which is removed at the end.

    Nothing protects the files against changes: the caller inspects the checkpoint again after the evaluation. Raises as
    `Format.inspect`, `EvaluationFailedError` if the checkpoint was replaced since it was found, or `StorageError`.
    """
    try:
        inside.mkdir(parents=True, exist_ok=True)
        _remove_old(inside)
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=inside)
    except OSError as error:
        raise StorageError(f"cannot write to {inside}: {error.strerror}") from error
    try:
        _gather(path, checkpoint, Path(folder))
        if verify(path.parent, path.name, checkpoint.format) != checkpoint.digest:
            raise EvaluationFailedError(
                f"mismatch: {place_of(path)} was replaced before it was evaluated: evaluate it again"
            )
        yield Path(folder, path.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_old(inside: Path) -> None:
    """Remove folders that killed commands left. One that cannot be removed is left there."""
    with contextlib.suppress(OSError), open_folder(inside) as folder:
        before = time.time() - _OLD_SECONDS
        for name in folder.names():
            if name.startswith(_PREFIX) and folder.stat(name).st_mtime < before:
                with contextlib.suppress(OSError):
                    folder.remove(name)


def _gather(path: Path, checkpoint: Checkpoint, folder: Path) -> None:
    """Give each file of the checkpoint a name in the folder, by a hard link if that is possible."""
    try:
        for name in FORMATS[checkpoint.format].inspect(path.parent, path.name).files:
            original, linked = resolve(path.parent, name), folder / name
            linked.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(path, BucketFolder):
                with open_file(path.parent, name) as stub, linked.open("xb") as fetched:
                    assert isinstance(stub, ObjectFile)
                    stub.fetch(fetched)
                continue
            try:
                os.link(original, linked, follow_symlinks=False)
            except FileNotFoundError:
                raise
            except OSError:  # another filesystem, or another user's file
                if original.stat().st_size <= _SMALL_BYTES:
                    shutil.copy2(original, linked)
                else:
                    linked.symlink_to(original)
    except FileNotFoundError as error:
        raise VanishedError(f"{path} was deleted before it could be evaluated") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
