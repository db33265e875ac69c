"""Build the catalog of a run, the rules of the policy and other records from the settings.

Commands that only read a run need no more than these, so this module must not import the daemon: its imports would
double the time in which such a command starts.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.commands.framework import formats_looked_for
from sidecar.policy.rules import EndRules, GroupRules, PlanRules, RetryRules, Rules
from sidecar.policy.selection import Selection
from sidecar.protocol.export_rule import ExportRule
from sidecar.retention.pins.index import PinIndex
from sidecar.settings import Settings
from sidecar.system.bounded_calls import Calls, call_directly
from sidecar.system.bucket_folder import BucketFolder, Source
from sidecar.system.clock import Clock, SystemClock

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")


def make_catalog(
    settings: Settings,
    clock: Clock | None = None,
    *,
    once: bool = False,
    asks_bucket: bool = True,
    calls: Calls = call_directly,
    longer: Calls = call_directly,
    rest: Callable[[], object] = lambda: None,
    progress: Callable[[], None] = lambda: None,
) -> Catalog:
    """Build the catalog of the checkpoint directory. With `once` it does not wait until files are quiet.

    Without `asks_bucket` it asks no object store, so that of a bucket it finds only what is pinned. The other arguments
    are those of `Catalog`.
    """
    pins_dir, root = settings.run_dir / "pins", settings.checkpoint_dir
    rules = replace(record_of(DiscoveryRules, settings), formats=formats_looked_for(settings))
    rules = replace(rules, quiet_seconds=0.0) if once else rules
    clock = clock or SystemClock()
    if isinstance(root, BucketFolder) and asks_bucket and not hasattr(root, "source"):
        root.source = source_of(root, settings, clock)
    return Catalog(
        root,
        pins_dir,
        PinIndex(pins_dir, rules, calls=calls, progress=progress),
        rules=rules,
        clock=clock,
        calls=calls,
        longer=longer,
        rest=rest,
        progress=progress,
    )


def source_of(folder: BucketFolder, settings: Settings, clock: Clock) -> Source:
    """Return what reads the bucket of a folder by the settings. Nothing is sent yet. Raises `SettingsError`."""
    from sidecar.checkpoints.bucket_mirror import mirror_of  # noqa: PLC0415 - nobody else pays for these imports
    from sidecar.system.object_store import ObjectStoreRules  # noqa: PLC0415 - as above

    return mirror_of(folder, record_of(ObjectStoreRules, settings), settings.bucket_scan_seconds, clock)


def make_rules(settings: Settings) -> Rules:
    """Build the rules of the policy from the settings."""
    return Rules(
        selection=record_of(Selection, settings),
        retries=record_of(RetryRules, settings),
        groups=record_of(GroupRules, settings),
        plans=record_of(PlanRules, settings),
        ending=record_of(EndRules, settings),
    )


def export_rule(settings: Settings) -> ExportRule | None:
    """Return the rule by which the settings export the best checkpoints; None if they export none."""
    if settings.best_metric is None or settings.export_best == 0:
        return None
    return ExportRule(metric=settings.best_metric, count=settings.export_best, by=settings.best_by)


def record_of(kind: type[Record], settings: Settings) -> Record:
    """Build a record of settings, whose fields have the names of the settings; other fields keep their defaults."""
    names = [field.name for field in fields(kind) if field.name in Settings.model_fields]
    return kind(**{name: getattr(settings, name) for name in names})
