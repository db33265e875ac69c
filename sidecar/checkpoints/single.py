"""One checkpoint whose place is known: which it is, whether its checksums match, where to restore it from."""

import re
from pathlib import Path, PurePath
from typing import Final

from sidecar.checkpoints.files import Listing, list_files
from sidecar.checkpoints.formats import FORMATS, Format, Inspection
from sidecar.checkpoints.found import Found
from sidecar.errors import StorageError, VanishedError
from sidecar.records import Checkpoint

STEP_PATTERN: Final = r"-(\d+)$"
"""Where the step stands in a name, if the checkpoint itself holds none: `ckpt-500`."""


def restore_path(checkpoint: Found | Checkpoint, folder: Path) -> str:
    """The path that a worker restores from, `folder` being where the files are on that worker's node."""
    record = checkpoint.checkpoint if isinstance(checkpoint, Found) else checkpoint
    return str(folder / PurePath(record.name).name)


def verify(folder: Path, name: str, format_name: str = "tf_object") -> str:
    """The digest of the checkpoint `name` as it lies in `folder` now.

    Raises:
        VanishedError, IncompleteError, CorruptError: as `Format.inspect`.
        StorageError: it cannot be read, or its format is unknown to this version.
    """
    if format_name not in FORMATS:
        raise StorageError(
            f"{name} is of the format {format_name!r}; known are {', '.join(FORMATS)}: update this daemon"
        )
    try:
        return FORMATS[format_name].inspect(folder, PurePath(name).name).digest
    except OSError as error:
        raise StorageError(f"cannot read {folder / name}: {error.strerror}") from error


def check(path: Path, format_name: str) -> None:
    """Compare all checksums of the checkpoint at a path.

    Raises:
        ChecksumError: one does not match.
        VanishedError, IncompleteError, CorruptError: as `Format.inspect`.
        StorageError: it cannot be read.
    """
    try:
        FORMATS[format_name].check(path.parent, path.name)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error


def as_checkpoint(format_: Format, name: str, inspection: Inspection, pattern: re.Pattern[str]) -> Checkpoint:
    """The record of what was inspected; its step is the one that it holds, or else the one in its name."""
    step = step_in(name, format_, pattern) if inspection.step is None else inspection.step
    return Checkpoint(name, inspection.digest, step, format_.name)


def step_in(name: str, format_: Format, pattern: re.Pattern[str]) -> int | None:
    """What the user's pattern finds in the name without the format's suffix, or else in all of it."""
    suffix = next((suffix for suffix in format_.suffixes if name.endswith(suffix)), "")
    match = pattern.search(name.removesuffix(suffix)) or pattern.search(name)
    try:
        return int(match[1]) if match else None
    except (IndexError, TypeError, ValueError):  # the user's pattern: no group, one that took no part, no number
        return None


def inspect_one(path: Path, *, step_key: str | None = None, step_pattern: str = STEP_PATTERN) -> Checkpoint:
    """The checkpoint at a path that somebody named, whether it is in a watched directory or not.

    Raises:
        VanishedError: there is none; the message lists those that are there.
        IncompleteError, CorruptError: as `Format.inspect`.
        StorageError: it cannot be read.
    """
    folder, name = path.parent, path.name
    try:
        for format_ in FORMATS.values():
            try:
                inspection = format_.inspect(folder, name, step_key=step_key)
            except VanishedError:
                continue  # there is none of this format
            return as_checkpoint(format_, name, inspection, re.compile(step_pattern))
        listing = list_files(folder) if folder.is_dir() else Listing({})
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    there = sorted({each.name for format_ in FORMATS.values() for each in format_.candidates(folder, listing)})
    raise VanishedError(f"there is no checkpoint {name} in {folder}; found: {', '.join(there[:10]) or 'none'}")
