"""Describe an exported checkpoint, in the file `manifest.json` next to its files. The file is a view of the journal.

Other users may be able to write there, so a manifest that is read is trusted only as far as the journal confirms it.
"""

import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, ClassVar, Final

from sidecar.checkpoints.inspect import inspect_again
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.totals import Best
from sidecar.errors import CheckpointError, RecordError, StorageError
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.record_limits import MANIFEST as MANIFEST_LIMITS
from sidecar.protocol.record_limits import RecordLimits
from sidecar.protocol.records import SCHEMA, Checkpoint, EvalData, Value
from sidecar.retention.pins.names import TEMPORARY
from sidecar.retention.saves.comparison import Comparison
from sidecar.system import durable
from sidecar.system.confined import Folder, NotRegularError

MANIFEST: Final = "manifest.json"
_OTHER: Final = ".manifest.json"  # for a checkpoint that is itself a file with the usual name
MANIFESTS: Final = (_OTHER, MANIFEST)
LONGEST: Final = 1024 * 1024
MOST_FILES: Final = 2000


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """Name a file of an exported checkpoint, by its path in the folder, and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Describe an exported checkpoint."""

    LIMITS: ClassVar[RecordLimits] = MANIFEST_LIMITS

    run: str
    plan: int  # number of the evaluation in the journal
    checkpoint: str  # name of the checkpoint; its files have their original names
    path: str  # what a user passes to the framework, relative to the folder of the manifest
    format: str  # format of the checkpoint
    digest: str  # digest of the checkpoint
    step: int | None  # its training step, and how that was found
    step_source: str | None  # how the step was found
    evaluated_at: str  # when the evaluation was completed, UTC
    # Its place among the best ones, from 1, by EVAL_SET/METRIC. Empty: it is only not yet beaten by more than noise.
    ranks: dict[str, int]
    metrics: dict[str, dict[str, Value]]  # its numbers by eval set, each with its 95 % interval
    examples: dict[str, int]  # examples that were counted, by eval set
    files: tuple[ExportedFile, ...]
    # The data of the numbers, by eval set. Numbers of two exports can be compared if fingerprints and
    # examples are equal, and `task`. Empty: an older release wrote the manifest.
    data: dict[str, EvalData] = field(default_factory=dict)
    task: str = ""  # digest of the task's code
    # How much better it was than the best checkpoint before, if it has become the best one
    better_than: Comparison | None = None
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class NamedBest:
    """Name the folder of the best export, in the object `BEST_OBJECT`: a bucket has no links."""

    export: str
    schema: int = SCHEMA


def manifest_of(
    closed: Closed,
    best: Best | None,
    ranks: Mapping[str, int],
    files: tuple[ExportedFile, ...],
    better_than: Comparison | None = None,
) -> Manifest:
    """Return the manifest of a checkpoint with these files.

    `best`: its place in the ranking, which has the step also of a checkpoint that the journal numbers.
    """
    checkpoint = closed.checkpoint
    return Manifest(
        **_facts(closed),
        step=checkpoint.step if best is None else best.step,
        step_source=checkpoint.step_source if best is None else best.step_source,
        ranks=dict(sorted(ranks.items())),
        files=files,
        better_than=better_than,
    )


def as_known(manifest: Manifest, closed: Closed) -> Manifest:
    """Return a manifest in which all that the journal knows, too, is as the journal says: checkpoint and numbers."""
    checkpoint = closed.checkpoint
    known = replace(manifest, **_facts(closed))
    if checkpoint.step is None:  # the ranking numbers it
        return known
    return replace(known, step=checkpoint.step, step_source=checkpoint.step_source)


def _facts(closed: Closed) -> dict[str, Any]:
    """Return the fields of a manifest that the journal knows, too, other than the step."""
    checkpoint, result = closed.checkpoint, closed.result
    return {
        "run": closed.plan.run,
        "plan": closed.plan.plan,
        "checkpoint": checkpoint.name,
        "path": PurePath(checkpoint.name).name,
        "format": checkpoint.format,
        "digest": checkpoint.digest,
        "evaluated_at": closed.outcome.completed_at,
        "metrics": result.metrics,
        "examples": result.counted(),
        "data": result.data,
        "task": result.task,
    }


def write_manifest(folder: Folder, manifest: Manifest) -> None:
    """Write the manifest into the folder of its checkpoint, durable before it is visible. Raises OSError."""
    temporary = f"{TEMPORARY}{secrets.token_hex(8)}"
    durable.replace(folder, manifest_name(manifest.path), encoded(manifest), temporary=temporary)


def encoded(manifest: Manifest) -> bytes:
    """Return the content of a manifest's file."""
    return dumps(manifest) + b"\n"


def read_manifest(folder: Folder) -> Manifest | None:
    """Return the manifest in a folder; None if there is none. Raises OSError if it is there and cannot be read."""
    for name in MANIFESTS:
        with contextlib.suppress(FileNotFoundError, NotRegularError):
            if (found := decoded(folder.read(name, LONGEST))) is not None:
                return found
    return None


def decoded(data: bytes) -> Manifest | None:
    """Return the manifest in a file of which `LONGEST` + 1 bytes were read at most; None if it is another one."""
    try:
        return loads(Manifest, data) if len(data) <= LONGEST else None
    except RecordError:
        return None


def manifest_name(path: str) -> str:
    """Return the name of a manifest next to a checkpoint."""
    return _OTHER if path == MANIFEST else MANIFEST


def files_of(folder: Folder, checkpoint: Checkpoint) -> tuple[ExportedFile, ...]:
    """Return the files that the format of a checkpoint names; none of a damaged one. Others may be planted.

    Raises OSError if they cannot be listed.
    """
    try:
        names = inspect_again(folder.path, PurePath(checkpoint.name).name, checkpoint.format).files
    except (CheckpointError, StorageError):
        return ()
    return tuple(ExportedFile(name, (folder.path / name).lstat().st_size) for name in sorted(names)[:MOST_FILES])
