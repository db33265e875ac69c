"""Open the storage of a run's state by its settings. Every command and the daemon get it from here."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from sidecar.coordination.storage import PosixStorage, Storage
from sidecar.errors import SettingsError
from sidecar.settings import Settings
from sidecar.system.bucket_folder import BucketState, place_of
from sidecar.system.bucket_url import split_url
from sidecar.system.clock import SystemClock

if TYPE_CHECKING:
    from sidecar.system.object_store import ObjectStore

_LONGEST_PAUSE_SECONDS: Final = 1.0
"""The pause after failed requests for records: the daemon has its own, and heartbeats must go on within a lease."""


def state_storage(
    settings: Settings, on_answer: Callable[[], None] = lambda: None, *, reads_only: bool = False
) -> Storage:
    """Return the storage of the run's state. Nothing is asked yet. `on_answer`: called after each answer.

    `reads_only`: for a command that shows a moment and writes nothing; it may ask a bucket for much at the same time.
    Raises `SettingsError` if the state lies in a bucket, and another setting needs it on a filesystem.
    """
    if not isinstance(settings.state_dir, BucketState):
        return PosixStorage(settings.run_dir, on_answer)
    from sidecar.coordination.object_storage import Objects, ObjectStorage  # noqa: PLC0415 - for a bucket only

    objects: Objects = state_objects(settings)
    settings.state_dir.objects = state_objects(settings, settings.bucket_timeout_seconds)
    if reads_only:
        from sidecar.coordination.read_ahead import ReadAhead  # noqa: PLC0415 - likewise
        from sidecar.retention.exports.export_folder import EXPORTS  # noqa: PLC0415 - likewise

        objects = cast("Objects", ReadAhead(objects, SystemClock().now, (EXPORTS,)))  # without the writes
    return ObjectStorage(objects, place_of(settings.run_dir), on_answer)


def state_objects(settings: Settings, seconds: float | None = None) -> "ObjectStore":
    """Return the objects of a run whose state lies in a bucket. Nothing is asked yet. Raises as `state_storage`.

    `seconds`: how long a request may take; None: as long as a record may.
    """
    from sidecar.commands.from_settings import record_of  # noqa: PLC0415 - only where the state is in a bucket
    from sidecar.system.object_store import ObjectStore, ObjectStoreRules  # noqa: PLC0415 - likewise

    assert isinstance(settings.run_dir, BucketState)
    if (why := next(_obstacles(settings), None)) is not None:
        raise SettingsError(f"state_dir is in a bucket, and {why}")
    rules = record_of(ObjectStoreRules, settings)
    seconds = min(rules.bucket_timeout_seconds, seconds or settings.storage_timeout_seconds / 2)
    scheme, bucket, prefix = split_url(settings.run_dir.url)
    return ObjectStore(
        scheme=scheme,
        bucket=bucket,
        prefix=prefix,
        rules=replace(rules, bucket_timeout_seconds=seconds),
        longest_pause_seconds=_LONGEST_PAUSE_SECONDS,
    )


def _obstacles(settings: Settings) -> Iterator[str]:
    """Yield why the state of these settings cannot lie in a bucket, with what to do, as the end of a sentence."""
    if settings.framework == "python":
        why = 'the workers of framework = "python" meet in the state directory'
        yield f"{why}: use another framework, or let state_dir be a directory that all nodes share"
    if settings.state_backup is not None:
        yield "needs no backup: leave state_backup out"
