"""Find the best checkpoint of a run, check that it is whole, and print or copy it.

It is the best export or, without exports, the best checkpoint where training saved it.

Other users may be able to write to the exports. So the link and the manifest only say where to look: the journal says
which checkpoint was evaluated, and its digest is computed again.
"""

import contextlib
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final

import typer

from sidecar.checkpoints.inspect import FETCHED, inspect_again
from sidecar.commands.hints import no_result, no_run
from sidecar.commands.load import check_place, load_in_time, warn
from sidecar.commands.state_storage import state_storage
from sidecar.coordination.closed_plan import read_success
from sidecar.coordination.journal import read_history
from sidecar.coordination.run import read_run
from sidecar.coordination.storage import Storage
from sidecar.errors import CheckpointError, NoExportError, NothingExportedError, SettingsError, StorageError
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Checkpoint
from sidecar.publishing.report import bests
from sidecar.retention.exports.export_folder import BEST, EXPORTS, opened_exports
from sidecar.retention.exports.export_manifest import (
    MANIFEST,
    ExportedFile,
    Manifest,
    as_known,
    write_manifest,
)
from sidecar.retention.pins.disk_budget import free_bytes
from sidecar.settings import Settings
from sidecar.system.bucket_folder import BucketFolder, BucketState, place_of
from sidecar.system.confined import Folder, open_folder
from sidecar.system.durable import copy_content, sync_file
from sidecar.system.plain_text import number, one_line

_BLOCK_BYTES: Final = 512  # of stat(2), whatever the filesystem's are


@dataclass(frozen=True, slots=True)
class BestExport:
    """Hold the best export: its folder, its checkpoint as the journal says, and its manifest."""

    folder: Path
    checkpoint: Checkpoint
    manifest: Manifest

    @property
    def path(self) -> Path:
        """Return the path that a user passes to the framework."""
        return self.folder / PurePath(self.checkpoint.name).name

    def as_json(self) -> dict[str, Any]:
        """Return the manifest, with the paths on this machine or, with the state in a bucket, the URLs."""
        document: dict[str, Any] = json.loads(dumps(self.manifest))
        return document | {"folder": place_of(self.folder), "path": place_of(self.path)}


def print_best(flags: dict[str, Any], *, as_json: bool, copy_to: Path | None) -> None:
    """Print the path of the best export, or its manifest, or copy it and print the path of the copy."""
    settings, timeout = load_in_time(flags)
    storage = state_storage(settings)
    timeout.call(lambda: check_place(settings, storage))
    try:
        found = timeout.call(lambda: find_best(settings, storage))
    except NothingExportedError:
        if copy_to is not None:
            raise
        _print(*timeout.call(lambda: _saved_best(settings, storage)), as_json=as_json)
        return
    if copy_to is not None:
        target = copy_to.absolute()
        with _fetched(found, settings.run_dir, target) as here:
            copied = timeout.call(lambda: copy_best(here, target, timeout.answered))
        found = BestExport(copied, found.checkpoint, found.manifest)
    _print(found.path, found.as_json(), as_json=as_json)


def _print(path: Path, document: dict[str, Any], *, as_json: bool) -> None:
    """Print the document, or else the path alone, for a script."""
    if as_json:
        typer.echo(json.dumps(document, indent=1, allow_nan=False))
    else:  # a script needs the bytes of the path, and a terminal must not obey a checkpoint's name
        typer.echo(one_line(place_of(path)) if sys.stdout.isatty() else os.fsencode(place_of(path)))


def _saved_best(settings: Settings, storage: Storage) -> tuple[Path, dict[str, Any]]:
    """Return the path of the best checkpoint where training saved it, and its facts. Warn that it is not exported.

    Raises `NoExportError` if no number has a direction, or the files are gone or other ones by now.
    """
    history = read_history(storage)
    if not history.log.count:
        raise NoExportError(no_result(settings))
    found = {f"{eval_set}/{name}": best for (eval_set, name), best in bests(history).items()}
    metric = settings.best_metric or next(iter(found), None)
    if metric is None or metric not in found:
        why = f"{metric} was not measured, or has no direction" if metric else "no number with a direction was measured"
        raise NoExportError(f"run {settings.run}: nothing is exported, and {why}: {_remedy(settings)}")
    best = found[metric]
    closed = read_success(storage, best.plan)
    checkpoint = None if closed is None else closed.plan.checkpoint
    step = "" if best.step is None else f" (step {best.step})"
    about = f"{best.checkpoint}{step} is the best by {metric}, {number(best.number)}"
    path = settings.checkpoint_dir / best.checkpoint
    if isinstance(settings.checkpoint_dir, BucketFolder):
        raise NoExportError(f"{about}; it was not exported, and may lie in the bucket: {_remedy(settings)}")
    try:
        is_there = checkpoint is not None and (
            inspect_again(path.parent, path.name, checkpoint.format).digest == checkpoint.digest
        )
    except CheckpointError:
        is_there = False
    if checkpoint is None or not is_there:
        raise NoExportError(f"{about}; it is gone, and was not exported: {_remedy(settings)}")
    warn(f"{about}; it is not exported, so training may delete it: {_remedy(settings)}")
    facts = {"checkpoint": checkpoint.name, "digest": checkpoint.digest, "step": checkpoint.step, "exported": False}
    return path, facts | {"metric": metric, "value": best.number, "path": str(path)}


def find_best(settings: Settings, storage: Storage) -> BestExport:
    """Return the best export of a run, whose files are whole.

    Raises `NoExportError` if there is none or it is not what the journal says, or `StorageError`.
    """
    found = read_best(settings, storage)
    if not isinstance(settings.run_dir, BucketState):
        _require_whole(found.folder, found.checkpoint)
        return found
    from sidecar.retention.exports.bucket_exports import BucketExports  # noqa: PLC0415 - only with a state in a bucket

    if not BucketExports(settings.run_dir).is_whole(found.folder.name, found.manifest):
        raise NoExportError(f"{place_of(found.folder)} is not whole: a file of its {MANIFEST} is missing")
    return found


def read_best(settings: Settings, storage: Storage) -> BestExport:
    """Return the best export of a run without reading its files, which may be large. Raises as `find_best`."""
    run, where = read_run(storage), settings.run_dir / EXPORTS
    if run is None:
        raise NoExportError(no_run(settings))
    if isinstance(settings.run_dir, BucketState) and not storage.names(EXPORTS):  # which was asked for already
        raise _nothing_exported(settings)
    try:
        with opened_exports(settings.run_dir) as exports:
            name = exports.best()
            if name is None:
                raise _no_best(settings)
            manifest = exports.manifest(name)
    except FileNotFoundError:
        raise _nothing_exported(settings) from None
    except OSError as error:
        raise StorageError(f"cannot read {error.filename or where}: {error.strerror}") from error
    if manifest is None:
        why = f"has no {MANIFEST} that can be read: restart a daemon, which writes it again"
        raise NoExportError(f"{place_of(where / name)} {why}")
    closed = read_success(storage, manifest.plan)
    checkpoint = None if closed is None else closed.plan.checkpoint
    if closed is None or checkpoint is None or closed.plan.run != run or checkpoint.folder != name:
        raise NoExportError(f"{place_of(where / name)} is not an export of run {settings.run}: move it away")
    return BestExport(where / name, checkpoint, as_known(manifest, closed))


def _no_best(settings: Settings) -> NoExportError:
    if isinstance(settings.run_dir, BucketState):
        return _nothing_exported(settings)
    return NoExportError(f"{settings.run_dir / EXPORTS / BEST} does not lead to an export: {_remedy(settings)}")


def _nothing_exported(settings: Settings) -> NothingExportedError:
    return NothingExportedError(f"run {settings.run}: nothing is exported yet: {_remedy(settings)}")


@contextlib.contextmanager
def _fetched(best: BestExport, root: Path, target: Path) -> Iterator[BestExport]:
    """Yield an export, or what was fetched of one in a bucket, in a temporary folder next to the target of a copy.

    `root`: the state directory. Requests to a bucket end in time by themselves. Raises as `copy_best`.
    """
    if not isinstance(root, BucketState):
        yield best
        return
    from sidecar.retention.exports.bucket_exports import BucketExports  # noqa: PLC0415 - only with a state in a bucket

    _require_free(target)
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".sidecar-best-", dir=target.parent) as place,
            open_folder(Path(place)) as folder,
        ):
            BucketExports(root).fetch(best.folder.name, folder)
            yield replace(best, folder=Path(place))
    except OSError as error:
        raise StorageError(f"cannot fetch {place_of(best.folder)}: {error.strerror or error}") from error


def copy_best(best: BestExport, target: Path, answered: Callable[[], None]) -> Path:
    """Copy an export, with its original names and its manifest, to a new folder that appears by one rename; return it.

    Only files that the format of the checkpoint names are copied, because another user may have added others. The
    manifest is written anew from the journal, because another user may have changed it. `answered` is called while the
    copy goes on.

    Raises `SettingsError` if the target exists or its parent does not, `NoExportError` if the export changed meanwhile,
    and `StorageError` if it cannot be copied.
    """
    _require_free(target)
    names = _require_whole(best.folder, best.checkpoint)
    temporary = f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        with open_folder(best.folder) as source, open_folder(target.parent) as above:
            _require_room(source, names, target)
            above.make_folder(temporary)
            try:
                with above.folder(temporary) as copy:
                    copied = _copy(source, copy, names, answered)
                    with contextlib.suppress(FileNotFoundError):  # it was fetched from a bucket, and identified there
                        _copy(source, copy, (FETCHED,), answered)
                    _require_whole(target.parent / temporary, best.checkpoint)
                    write_manifest(copy, replace(best.manifest, files=copied))
                    copy.sync()
                above.rename(temporary, target.name)  # fails if the name was taken meanwhile by a folder with files
                above.sync()
            except BaseException:
                with contextlib.suppress(OSError):
                    above.remove(temporary)
                raise
    except FileNotFoundError as error:
        raise NoExportError(f"{best.folder} changed while it was copied: try again") from error
    except OSError as error:
        raise StorageError(f"cannot copy {best.folder} to {target}: {error.strerror or error}") from error
    return target


def _require_free(target: Path) -> None:
    """Raise `SettingsError` unless a folder can be made there."""
    if os.path.lexists(target):
        raise SettingsError(f"--copy-to {target} exists: name a folder that does not exist yet")
    if not target.parent.is_dir():
        raise SettingsError(f"--copy-to {target}: {target.parent} does not exist: create it")


def _copy(
    source: Folder, target: Folder, names: Iterable[str], answered: Callable[[], None]
) -> tuple[ExportedFile, ...]:
    """Copy these files durably, and return them. Holes stay holes. Raises OSError, also for a link or a FIFO."""
    copied: list[ExportedFile] = []
    parents = {name: PurePath(name).parent.as_posix() for name in names}
    for name, parent in parents.items():
        with contextlib.ExitStack() as stack:
            inner, into = source, target
            if parent != ".":
                inner = stack.enter_context(source.folder(parent))
                into = stack.enter_context(target.folder(parent, make=True))
            base = PurePath(name).name
            original = stack.enter_context(inner.open_file(base))
            copy = stack.enter_context(into.create_file(base))
            copy_content(original, copy, answered)
            sync_file(copy)
            copied.append(ExportedFile(name, os.fstat(copy.fileno()).st_size))
            into.sync()
        answered()
    target.sync()
    return tuple(copied)


def _require_room(source: Folder, names: Iterable[str], target: Path) -> None:
    """Raise `StorageError` unless the files fit where they are copied to. Holes take no space."""
    needed = sum((source.path / name).lstat().st_blocks * _BLOCK_BYTES for name in names)
    if needed > (free := free_bytes(target.parent)):
        raise StorageError(f"cannot copy {source.path} to {target}: it has {needed} bytes, and {free} are free there")


def _require_whole(folder: Path, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the files of a checkpoint. Raise `NoExportError` unless the folder holds it as it was evaluated."""
    try:
        found = inspect_again(folder, checkpoint.name, checkpoint.format)
    except CheckpointError as error:
        raise NoExportError(f"{folder} is damaged: {error}") from error
    if found.digest != checkpoint.digest:
        raise NoExportError(f"{folder} does not hold {checkpoint.name} as it was evaluated: remove it")
    return found.files


def _remedy(settings: Settings) -> str:
    """Return what a person can do if nothing is exported."""
    if settings.export_best:
        return "a checkpoint is exported some seconds after its evaluation, if best_metric has a direction"
    return "set export_best = 1 and best_metric, and start the daemons with them; `sidecar check` shows the settings"
