"""Decide which files belong together. A group of files may be one checkpoint; its name is its main file's. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.checkpoints.complete_marker import CompleteMarker
from sidecar.checkpoints.formats import Format, file_group


@dataclass(frozen=True, slots=True)
class MarkerGroup:
    """Identify the user's marker. `checkpoint`: the checkpoint that it marks; None: it marks all in the directory."""

    checkpoint: str | None


FileGroup = str | MarkerGroup
"""A sub-folder or a group of files by its name, or the user's marker."""


def group_of(name: str, *, marker: CompleteMarker | None, formats: Sequence[Format]) -> FileGroup | None:
    """Return the group that a file in a directory of checkpoints belongs to; None if it belongs to no group.

    `formats`: the formats that the scan is for.
    """
    if marker is not None:
        if marker.marks_all(name):
            return MarkerGroup(None)
        if (checkpoint := marker.checkpoint(name)) is not None:
            return MarkerGroup(checkpoint)
    return file_group(name, formats)
