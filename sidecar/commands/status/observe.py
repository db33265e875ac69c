"""Build the observer of a run for the commands that read shared storage only."""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sidecar.checkpoints.filesystem import mount_here
from sidecar.commands.best import BestExport, read_best
from sidecar.commands.from_settings import make_catalog, make_rules
from sidecar.commands.hints import no_run
from sidecar.commands.load import check_place, load_in_time
from sidecar.commands.state_storage import state_storage
from sidecar.commands.status.collect import RunObserver, file_times
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.commands.waiting import busy_among
from sidecar.coordination.storage import Storage
from sidecar.errors import RecordError, SidecarError
from sidecar.protocol.codec import loads
from sidecar.protocol.record_limits import SMALL
from sidecar.settings import Settings
from sidecar.system.bucket_folder import BucketFolder, place_of
from sidecar.system.clock import SystemClock

if TYPE_CHECKING:
    from sidecar.publishing.state_backup.ownership import Own

_BEATS: Final = 1.25  # a live node has written within one; the quarter is for a busy machine


def observer_of(
    flags: dict[str, Any], *, asks_bucket: bool = False, reads_only: bool = True
) -> tuple[Settings, StorageTimeout, RunObserver]:
    """Read the settings, and return them with the limit of calls to storage and the observer of their run.

    `asks_bucket`: as in `make_catalog`. `reads_only`: as in `state_storage`.
    """
    settings, storage_timeout = load_in_time(flags)
    storage = state_storage(settings, storage_timeout.answered, reads_only=reads_only)
    storage_timeout.call(lambda: check_place(settings, storage))
    observer = RunObserver(
        storage,
        make_catalog(settings, once=True, asks_bucket=asks_bucket, progress=storage_timeout.answered),
        SystemClock(),
        lease_seconds=settings.lease_seconds,
        written_at=file_times(settings.run_dir),
        trusted_seconds=storage_timeout.call(lambda: _trusted_seconds(settings)),
        no_run=partial(no_run, settings),
        busy=partial(busy_among, settings),
        selection=make_rules(settings).selection,
        starts_new=settings.start == "new",
        min_workers=settings.min_workers,
        beat_seconds=settings.beat_seconds,
        place=_place(settings),
        best_export=partial(read_best_export, settings, storage),
        backup=partial(read_backup, storage),
    )
    return settings, storage_timeout, observer


def _trusted_seconds(settings: Settings) -> float | None:
    """Return how old a heartbeat's file may be to prove that its node lives; None if its time proves nothing.

    A filesystem of this machine has this machine's clock: a live daemon has written within the time of a beat.
    """
    if isinstance(settings.checkpoint_dir, BucketFolder):
        return settings.lease_seconds
    mount = mount_here(settings.run_dir)
    return None if mount is None or mount.is_shared else _BEATS * settings.beat_seconds


def read_best_export(settings: Settings, storage: Storage) -> BestExport | None:
    """Return the best export; None if there is none that can be read, and `sidecar best` says why."""
    try:
        return read_best(settings, storage)
    except SidecarError:
        return None


def read_backup(storage: Storage) -> "Own | None":
    """Return what the state directory says of its backup; None if it was never sent. Raises `StorageError`."""
    data = storage.read("state_backup.json", SMALL.size)
    if data is None:
        return None
    from sidecar.publishing.state_backup.ownership import Own  # noqa: PLC0415 - only runs with a backup pay for it

    try:
        return loads(Own, data)
    except RecordError:
        return None


def _place(settings: Settings) -> str:
    """Return the directory of the checkpoints; for a URL, with the directory of the state, which is elsewhere."""
    place = place_of(settings.checkpoint_dir)
    if not isinstance(settings.checkpoint_dir, BucketFolder):
        return place
    return f"{place}, its state in {place_of(settings.state_dir)}"
