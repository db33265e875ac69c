"""Inspect one checkpoint whose path is known: its digest and step, its checksums, and the path to restore it from."""

import json
import re
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.files import read_file
from sidecar.checkpoints.formats import FORMATS, Format, Inspection, looked_for
from sidecar.checkpoints.scan import DiscoveredCheckpoint, in_folder
from sidecar.checkpoints.step_names import step_in_name
from sidecar.checkpoints.subfolder_hint import names_in, of_tensorflow_1, pattern_line, remedy_below, similar_folder
from sidecar.errors import CheckpointError, StorageError, VanishedError
from sidecar.protocol.records import Checkpoint, StepSource
from sidecar.system.bucket_folder import BucketFolder, place_of

FETCHED: Final = ".fetched.json"
"""The file next to a checkpoint that was fetched from a bucket: its digest by etags, and the one by its content."""

_DEFAULTS: Final = DiscoveryRules()
_MOST_FETCHED_BYTES: Final = 4096


def restore_path(checkpoint: DiscoveredCheckpoint | Checkpoint, folder: Path) -> str:
    """Return the path that a worker restores from. `folder`: the folder of the files on that worker's node."""
    record = checkpoint.checkpoint if isinstance(checkpoint, DiscoveredCheckpoint) else checkpoint
    return str(folder / PurePath(record.name).name)


def verify(folder: Path, name: str, format_name: str = "tf_object") -> str:
    """Return the digest of the checkpoint `name` in `folder`, by its present files. Raises as `inspect_again`."""
    return inspect_again(folder, name, format_name).digest


def inspect_again(folder: Path, name: str, format_name: str) -> Inspection:
    """Return the inspection of the checkpoint `name` in `folder`, by its present files. Raises as `Format.inspect`.

    Raises `StorageError` if the files cannot be read, or this version does not know the format.
    """
    if format_name not in FORMATS:
        raise StorageError(
            f"{name} is of the format {format_name!r}; known are {', '.join(FORMATS)}: update this daemon"
        )
    try:
        return identified(folder, FORMATS[format_name].inspect(folder, PurePath(name).name))
    except OSError as error:
        raise StorageError(f"cannot read {place_of(folder / name)}: {error.strerror}") from error


def identified(folder: Path, inspection: Inspection) -> Inspection:
    """Return the inspection with the digest by etags, if the folder is one of a bucket, or holds what it fetched."""
    if isinstance(folder, BucketFolder):
        return replace(inspection, digest=folder.source.digest(folder / name for name in inspection.files))
    try:
        recorded = json.loads(read_file(folder, FETCHED, limit=_MOST_FETCHED_BYTES))
    except (CheckpointError, ValueError):
        return inspection
    is_same = isinstance(recorded, dict) and recorded.get("content") == inspection.digest
    return replace(inspection, digest=str(recorded.get("digest"))) if is_same else inspection


def check(path: Path, format_name: str) -> None:
    """Compare all checksums of the checkpoint at a path. Raises as `Format.check`, or `StorageError`."""
    try:
        FORMATS[format_name].check(path.parent, path.name)
    except OSError as error:
        raise StorageError(f"cannot read {place_of(path)}: {error.strerror}") from error


def as_checkpoint(format_: Format, name: str, inspection: Inspection, pattern: re.Pattern[str] | None) -> Checkpoint:
    """Return the record of a checkpoint that was inspected.

    The step is the one that the user's settings find, else the one in the files, else the one in the name. A step of 0
    in the files is used only if the name has no step: it may belong to an optimizer that training does not use.
    """
    held, held_source = inspection.step, inspection.step_source
    named = step_in(name, format_, pattern)
    step: int | None = None
    source: StepSource = "order"
    if held is not None and held_source == "step_key":
        step, source = held, "step_key"
    elif named is not None and pattern is not None:
        step, source = named, "step_pattern"
    elif held or (held is not None and named is None):
        step, source = held, held_source or "variable"
    elif named is not None:
        step, source = named, "name"
    return Checkpoint(name=name, digest=inspection.digest, step=step, format=format_.name, step_source=source)


def step_in(name: str, format_: Format, pattern: re.Pattern[str] | None) -> int | None:
    """Return the step in a name: found by the user's pattern if there is one, or else by the words that are usual."""
    stem = stem_of(name, format_)
    if pattern is None:
        return step_in_name(stem)
    match = pattern.search(stem) or pattern.search(name)
    try:
        return int(match[1]) if match else None
    except (IndexError, TypeError, ValueError):  # the pattern has no group, or the group matched nothing or no number
        return None


def stem_of(name: str, format_: Format) -> str:
    """Return a name without the suffix of its format."""
    return name.removesuffix(next((suffix for suffix in format_.suffixes if name.endswith(suffix)), ""))


def _remedy(path: Path) -> str | None:
    if path.is_file():
        return of_tensorflow_1(path.parent) or (f"this file has no name of a checkpoint: {pattern_line(path.name)}")
    return similar_folder(path) or (remedy_below(path.parent) if path.parent.is_dir() else None)


def inspect_one(
    path: Path,
    *,
    root: Path | None = None,
    rules: DiscoveryRules = _DEFAULTS,
) -> Checkpoint:
    """Return the checkpoint at a path that the user named, in a watched directory or elsewhere.

    `root`: the checkpoint directory. A checkpoint below it is named by its path from there. `rules`: those that say
    where its step is, and which names are checkpoints whatever their format. Raises as `Format.inspect`, or
    `StorageError`; the message of `VanishedError` lists the checkpoints that exist.
    """
    folder, name = path.parent, path.name
    try:
        formats = looked_for(pattern=rules.checkpoint_pattern)
        for format_ in formats:
            try:
                inspection = format_.inspect(folder, name, step_key=rules.step_key)
            except VanishedError:
                continue  # this format has no checkpoint of that name
            is_below = root is not None and folder.is_relative_to(root) and ".." not in path.parts
            below = str(folder.relative_to(root)) if root is not None and is_below and folder != root else ""
            inspection = identified(folder, inspection)
            return as_checkpoint(format_, in_folder(below, name), inspection, rules.step_expression)
        found = names_in(folder, formats=formats) if folder.is_dir() else []
        hint = None if found else _remedy(path)
    except OSError as error:
        raise StorageError(f"cannot read {place_of(path)}: {error.strerror}") from error
    names = ", ".join(found[:10]) or "none"
    raise VanishedError(
        f"there is no checkpoint {name} in {place_of(folder)}; found: {names}" + (f"; {hint}" if hint else "")
    )
