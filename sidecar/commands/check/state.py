"""Check the state directory: its journal, its mount, and whether create-if-absent works there."""

import secrets
from collections.abc import Generator, Iterator

from sidecar.checkpoints.filesystem import mount_here, troubles
from sidecar.commands.check.finding import Finding
from sidecar.commands.from_settings import record_of
from sidecar.commands.state_storage import state_storage
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.coordination import snapshot_store
from sidecar.coordination.journal import Journal
from sidecar.coordination.run import find_run
from sidecar.coordination.state_directory import StateDirectory
from sidecar.errors import SidecarError, StateUnavailableError
from sidecar.settings import Settings
from sidecar.system.bucket_folder import BucketState, place_of


def journal(settings: Settings, storage_timeout: StorageTimeout) -> Generator[Finding, None, bool]:
    """Read the run's state as a daemon does at its start, and return whether the state directory may be written to.

    It may not while the state is unavailable: the files would be written below the mount point of its storage.
    """
    try:
        text = storage_timeout.call(lambda: _read_journal(settings, storage_timeout))
    except SidecarError as error:
        yield Finding(what="journal", ok=False, text=str(error))
        return not isinstance(error, StateUnavailableError)
    yield Finding(what="journal", ok=True, text=text)
    return True


def _read_journal(settings: Settings, storage_timeout: StorageTimeout) -> str:
    """Read the journal to its end, and return a sentence about the run. Raises the error that a daemon would meet."""
    storage = state_storage(settings, storage_timeout.answered)
    place, run = StateDirectory(settings.checkpoint_dir, settings.run_dir), find_run(storage)
    if run is None:
        place.check_beginning()
        return f"{place_of(settings.run_dir)} holds no run yet: the first daemon begins one"
    place.check(run)
    journal = Journal(storage, run.run)
    snapshot_store.resume(storage, journal)
    for _ in journal.read_to_end():
        pass
    return f"run {run.run} has {journal.through} plans, and no record is missing behind the newest snapshot"


def storage(settings: Settings, storage_timeout: StorageTimeout) -> Iterator[Finding]:
    """Try create-if-absent with a file that is removed again, and report problems of the mount."""
    if isinstance(settings.run_dir, BucketState):
        yield _of_bucket(settings, storage_timeout)
        return
    inside = settings.state_dir.is_relative_to(settings.checkpoint_dir)
    try:
        if inside and not storage_timeout.call(settings.checkpoint_dir.is_dir):
            text = f"{settings.run_dir} is not tried, because that would create the checkpoint directory"
            yield Finding(what="state", ok=True, text=text)
            return
        content = storage_timeout.call(lambda: _content_after_two_creations(settings))
        mount = storage_timeout.call(lambda: mount_here(settings.run_dir))
    except SidecarError as error:
        yield Finding(what="state", ok=False, text=str(error))
        return
    where = f"{settings.run_dir}" if mount is None else f"{settings.run_dir} on {mount.filesystem}"
    if content != b"first":
        text = f"{where}: an existing name was overwritten; name a state_dir on a POSIX filesystem"
        yield Finding(what="state", ok=False, text=text)
        return
    yield Finding(what="state", ok=True, text=f"{where} is writable, and create-if-absent works")
    for trouble in troubles(mount, settings.visibility_seconds) if mount is not None else ():
        yield Finding(what="state", ok=not trouble.fatal, text=f"{mount.point if mount else ''}: {trouble.text}")


def _of_bucket(settings: Settings, storage_timeout: StorageTimeout) -> Finding:
    """Try conditional writes with an object that is deleted again, and say whose credentials are used."""
    from sidecar.system.object_store import ObjectStoreRules, credential_source  # noqa: PLC0415 - only with a URL

    place = place_of(settings.run_dir)
    try:
        refuses_stale = storage_timeout.call(lambda: state_storage(settings).probe())
        source = credential_source(place.partition(":")[0], record_of(ObjectStoreRules, settings))
    except SidecarError as error:
        return Finding(what="state", ok=False, text=str(error))
    text = f"{place} is writable, and create-if-absent works; credentials: {source}"
    if refuses_stale:
        return Finding(what="state", ok=True, text=text)
    return Finding(what="state", ok=True, text=f"{text}; its server ignores etags of writes", doubtful=True)


def _content_after_two_creations(settings: Settings) -> bytes | None:
    """Create one name twice with different content, and return the content, which must be the first one."""
    storage = state_storage(settings)
    name = f".check-{secrets.token_hex(8)}"
    try:
        storage.create(name, b"first")
        storage.create(name, b"second")
        return storage.read(name)
    finally:
        storage.remove(name)
