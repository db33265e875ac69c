"""Check the checkpoint directory: what a scan finds there, and how the daemon will see new checkpoints."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.filesystem import mount_here, why_no_events
from sidecar.checkpoints.formats.format import shown
from sidecar.checkpoints.scan import ScanResult
from sidecar.checkpoints.step_sources import REMEDY, StepSources
from sidecar.checkpoints.subfolder_hint import of_several_runs, similar_folder
from sidecar.checkpoints.watch import Watch
from sidecar.commands.check.finding import Finding
from sidecar.commands.from_settings import record_of
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.errors import SidecarError
from sidecar.settings import Settings
from sidecar.system.bucket_folder import BucketFolder, place_of
from sidecar.system.bucket_url import split_url


def checkpoints(settings: Settings, catalog: Catalog, storage_timeout: StorageTimeout) -> Iterator[Finding]:
    """Report the checkpoints that a scan finds, hints about names and runs, and how new ones will be detected."""
    place = place_of(settings.checkpoint_dir)
    try:
        if isinstance(settings.checkpoint_dir, BucketFolder):
            yield _credentials(settings, settings.checkpoint_dir)
        scan = storage_timeout.call(catalog.scan)
        detection = storage_timeout.call(lambda: _detection(settings))
        similar = storage_timeout.call(lambda: similar_folder(settings.checkpoint_dir)) if scan.missing else ""
        unmatched = None if scan.found else storage_timeout.call(lambda: _unmatched(settings))
    except SidecarError as error:
        yield Finding(what="checkpoints", ok=False, text=str(error))
        return
    if scan.missing:
        why = similar or "is it shared with the chief?"
        text = f"{place} does not exist yet, and the daemon would wait: {why}"
        yield Finding(what="checkpoints", ok=True, text=text, doubtful=bool(similar))
        return
    newest = f", the newest is {scan.found[-1].checkpoint.name}" if scan.found else ""
    yield Finding(what="checkpoints", ok=True, text=f"{len(scan.found)} complete in {place}{newest}")
    for hint in (unmatched, scan.below, _several_runs(settings, scan)):
        if hint is not None:
            yield Finding(what="checkpoints", ok=True, text=hint, doubtful=True)
    if scan.found:
        steps = StepSources()
        steps.add(discovered.checkpoint for discovered in scan.found)
        text = f"{steps.summary()}: {REMEDY}" if steps.are_doubtful else steps.summary()
        yield Finding(what="checkpoints", ok=True, text=text)
    yield Finding(what="checkpoints", ok=True, text=detection)
    for name, reason in scan.waiting:
        yield Finding(what="checkpoints", ok=True, text=f"{name} is not complete: {reason}")
    for name, why in scan.left_out:
        yield Finding(what="checkpoints", ok=True, text=f"{name} is not evaluated: {why}")


def _unmatched(settings: Settings) -> str | None:
    """Return a hint if there is something in the directory, but no name that matches `checkpoint_pattern`."""
    pattern, place = settings.checkpoint_pattern, settings.checkpoint_dir
    if pattern is None or not place.is_dir():
        return None
    names = sorted(entry.name for entry in place.iterdir() if not entry.name.startswith("."))
    if not names or any(fnmatchcase(name, pattern) for name in names):
        return None
    return f"no name there matches checkpoint_pattern ({pattern}): there are {', '.join(map(shown, names[:3]))}"


def _several_runs(settings: Settings, scan: ScanResult) -> str | None:
    """Return a hint if `checkpoint_glob` makes one run of several, with one curve and one best checkpoint of all."""
    names_by_folder: dict[str, list[str]] = {}
    for found in scan.found:
        folder, _, name = found.checkpoint.name.rpartition("/")
        names_by_folder.setdefault(folder, []).append(name)
    runs = of_several_runs(settings.checkpoint_dir, names_by_folder)
    return None if runs is None else f"{runs}; checkpoint_glob makes one run of them"


def _credentials(settings: Settings, folder: BucketFolder) -> Finding:
    """Return where credentials of the bucket come from. Raises `SettingsError` if there are none."""
    from sidecar.system.object_store import ObjectStoreRules, credential_source  # noqa: PLC0415 - as in `source_of`

    source = credential_source(split_url(folder.url)[0], record_of(ObjectStoreRules, settings))
    return Finding(what="bucket", ok=True, text=f"{folder.url} is read with credentials from {source}")


def _detection(settings: Settings) -> str:
    """Return a sentence about how new checkpoints are detected, and on which type of filesystem."""
    if isinstance(settings.checkpoint_dir, BucketFolder):
        return f"new ones are detected by a listing of the bucket every {settings.bucket_scan_seconds:g} s"
    why_not = partial(why_no_events, file_events=settings.file_events, sweep_seconds=settings.sweep_seconds)
    watch = Watch(settings.checkpoint_dir, lambda: None, why_not=why_not)
    watch.start()
    problem = watch.problem
    watch.stop()
    mount = mount_here(settings.checkpoint_dir)
    where = "" if mount is None else f" on {mount.filesystem}"
    scans = f"a scan every {settings.sweep_seconds:g} s"
    means = f"file events and {scans}" if problem is None else f"{scans} only ({problem})"
    return f"new ones{where} are detected by {means}"
