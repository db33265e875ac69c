"""Carry out `sidecar restore-state`: make the state directory of a run anew from its backup, and take the backup over.

The directory is made under another name, its journal is read to the end, and only then it gets its name. Nothing in the
backup is trusted: names are checked, sizes are those of the listing, records are read as those of other nodes.
"""

import secrets
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import typer

from sidecar.commands.from_settings import record_of
from sidecar.commands.load import load_settings
from sidecar.commands.state_storage import state_storage
from sidecar.coordination.journal import read_history
from sidecar.coordination.journal_records import plan_path
from sidecar.coordination.run import JOURNAL_FOLDERS, RUN_PATH, SEGMENTS, read_run
from sidecar.coordination.segments import Segments, marker
from sidecar.coordination.storage import MAX_RECORD_BYTES, TEMPORARY, PosixStorage
from sidecar.coordination.unique_names import parse
from sidecar.errors import RecordError, SettingsError, StateUnavailableError, StorageError
from sidecar.policy.node_identity import node_name
from sidecar.protocol.codec import dumps
from sidecar.protocol.record_limits import SMALL
from sidecar.publishing.state_backup.backup_objects import BEST_EXPORT, is_part, why
from sidecar.publishing.state_backup.ownership import (
    OWN_PATH,
    BackupReplacedError,
    Own,
    Owner,
    create_owner,
    newest_owner,
    open_backup,
)
from sidecar.retention.exports.export_folder import EXPORTS, link_best
from sidecar.retention.exports.export_manifest import NamedBest
from sidecar.retention.pins.disk_budget import free_bytes
from sidecar.settings import Settings
from sidecar.system.bucket_folder import place_of
from sidecar.system.clock import SystemClock, timestamp
from sidecar.system.confined import Folder, open_folder
from sidecar.system.durable import sync_file
from sidecar.system.object_store import BucketError, ObjectStore, ObjectStoreRules, StoredObject

_AT_ONCE: Final = 8  # objects that are fetched at the same time


def restore_state(flags: dict[str, Any], environ: Any) -> None:
    """Restore the state directory that the settings name, and say what was done, or why there is nothing to do."""
    settings = load_settings(flags)
    if settings.state_backup is None:
        raise SettingsError("no backup is named: write --state-backup s3://bucket/backups, or set state_backup")
    if (run := read_run(state_storage(settings))) is not None:
        typer.echo(f"nothing to restore: {settings.run_dir} holds run {run} already")
        return
    store = backup_of(settings)
    restored = restore(settings, store, node_name(settings, environ), timestamp(SystemClock().wall()))
    typer.echo(restored or f"nothing to restore: {settings.state_backup} holds no backup of run {settings.run!r}")


def backup_of(settings: Settings) -> ObjectStore:
    """Return the store of the backup that the settings name. Raises `SettingsError` without obstore or credentials."""
    assert settings.state_backup is not None
    store = open_backup(settings.state_backup, settings.run, record_of(ObjectStoreRules, settings))
    store.open()
    return store


def require_state(settings: Settings, store: ObjectStore) -> None:
    """Raise `StateUnavailableError` if there is a backup of the run, and no state: a new run would begin at plan 1."""
    if (settings.run_dir / RUN_PATH).exists():
        return
    owner, number = _newest(store)
    if owner is None:
        return
    command = f"sidecar restore-state {shlex.quote(place_of(settings.checkpoint_dir))}"
    if settings.state_dir != settings.checkpoint_dir / ".sidecar":
        command += f" --state-dir {shlex.quote(str(settings.state_dir))}"
    raise StateUnavailableError(
        f"{settings.run_dir} holds no run, and {settings.state_backup} has a backup of run {owner.run}, made on "
        f"{owner.node} (copy {number}): to continue it here, make sure that the other machine is gone, and run "
        f"{command} --state-backup {settings.state_backup}; to begin a new run, name another folder as state_backup"
    )


def restore(
    settings: Settings,
    store: ObjectStore,
    node: str,
    at: str,
    *,
    room: Callable[[Path], int] = free_bytes,
) -> str | None:
    """Restore the state directory, and return what was done, as a sentence; None if there is no backup.

    Raises `StorageError` if the bucket or the disk fails, `BackupReplacedError` if another machine restores at the same
    time, and `RecordError` or `StorageLostError` for a backup that is not the whole state of a run. Then nothing is
    left, and the command may be repeated.
    """
    assert settings.state_backup is not None
    before, number = _newest(store)
    if before is None:
        return None
    own = Own(url=settings.state_backup, number=number + 1, nonce=secrets.token_hex(16))
    try:
        found = create_owner(store, own.number, Owner(run=before.run, nonce=own.nonce, node=node, at=at))
        if found.nonce != own.nonce:
            raise BackupReplacedError(f"{found.node} restores this run at the same time: let one of the two do it")
        objects = _wanted(store.listing())
    except BucketError as error:
        raise StorageError(why(error)) from error
    parent, temporary = settings.run_dir.parent, f"{TEMPORARY}restored-{secrets.token_hex(4)}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        size, free = sum(found.size for found in objects), room(parent)
        if size > free:
            raise StorageError(f"the backup has {size / 1e6:,.1f} MB, and {parent} has room for {free / 1e6:,.1f} MB")
        if settings.run_dir.exists():
            settings.run_dir.rmdir()
        with open_folder(parent) as folder, ExitStack() as stack:
            stack.callback(_remove_if_there, folder, temporary)
            with folder.folder(temporary, make=True) as made:
                _fetch_all(store, objects, made)
                history = _check(PosixStorage(parent / temporary), before.run, own)
                made.sync()
            folder.rename(temporary, settings.run_dir.name)
            folder.sync()
    except BucketError as error:
        raise StorageError(why(error)) from error
    except OSError as error:
        where = error.filename or settings.run_dir
        raise StorageError(f"cannot restore into {settings.run_dir}: {where}: {error.strerror or error}") from error
    return (
        f"restored run {before.run} into {settings.run_dir}: {history} plans, {len(objects):,} files, "
        f"{size / 1e6:,.1f} MB; the daemon on {before.node}, which has sent them, sends nothing more. "
        "Start the daemon as before"
    )


def _newest(store: ObjectStore) -> tuple[Owner | None, int]:
    """Return the newest owner of a backup, and its number; None and 0 if there is no backup. Raises `StorageError`."""
    try:
        return newest_owner(store)
    except BucketError as error:
        raise StorageError(f"it is not known whether there is a backup: {why(error)}") from error


def _wanted(found: list[StoredObject]) -> list[StoredObject]:
    """Return the objects that are files of the state. Raises `RecordError` for a record that no daemon would read."""
    parts = [each for each in found if is_part(each.key) and (each.size or each.key.startswith("evaluations/"))]
    segments = [each for each in parts if each.key.startswith(f"{SEGMENTS}/")]
    newest = max((each.key for each in segments), default="")
    first = int(Path(newest).name.partition(".")[0]) if newest else 0
    wanted = []
    for each in parts:
        folder, _, name = each.key.partition("/")
        if folder in JOURNAL_FOLDERS and int(name.partition(".")[0]) < first:
            continue  # it is in a segment before the newest one
        if folder in (*JOURNAL_FOLDERS, SEGMENTS, RUN_PATH) and each.size > MAX_RECORD_BYTES:
            raise RecordError(f"{each.key} in the backup has {each.size} bytes, and no record has so many")
        wanted.append(each)
    if RUN_PATH not in {each.key for each in wanted}:
        raise RecordError(f"the backup has no {RUN_PATH}: nothing was ever sent to it completely")
    return wanted


def _fetch_all(store: ObjectStore, objects: list[StoredObject], into: Folder) -> None:
    """Fetch objects into files of a folder, durably. Raises `OSError`."""

    def fetch(found: StoredObject) -> None:
        parent, _, name = found.key.rpartition("/")
        with ExitStack() as stack:
            folder = stack.enter_context(into.folder(parent, make=True)) if parent else into
            with folder.create_file(name) as file:
                if found.size:
                    store.fetch(found.key, found.etag, found.size, file)
                sync_file(file)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="restore") as pool:
        for _ in pool.map(fetch, objects):
            pass


def _check(storage: PosixStorage, run: str, own: Own) -> int:
    """Make the records that are not in a backup, read the whole journal, and return its newest plan."""
    if read_run(storage) != run:
        raise RecordError(f"{RUN_PATH} in the backup belongs to another run than its copies, {run}")
    _link_best(storage)
    segments = Segments(storage, run)
    segments.begin()
    if segments.end:
        storage.replace(plan_path(1), marker(run), survives_crash=True)
    history = read_history(storage)
    closed = history.through - (history.open is not None)
    storage.replace(OWN_PATH, dumps(replace(own, restored=closed)), survives_crash=True)
    return history.through


def _link_best(storage: PosixStorage) -> None:
    """Make the link to the best export, if the backup has that export. Raises `RecordError` and `OSError`."""
    data = storage.read(BEST_EXPORT, SMALL.size)
    if data is None:
        return
    name = parse(NamedBest, BEST_EXPORT, data).export
    storage.remove(BEST_EXPORT)
    if is_part(f"{EXPORTS}/{name}/x") and "/" not in name and storage.names(f"{EXPORTS}/{name}"):
        with open_folder(storage.root) as root, root.folder(EXPORTS) as exports:
            link_best(exports, name)


def _remove_if_there(folder: Folder, name: str) -> None:
    """Remove the unfinished directory, unless it got its name."""
    if name in folder.names():
        folder.remove(name)
