"""Which files belong together: a group of files may be one checkpoint, and is named like its main file. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.checkpoints.complete_marker import CompleteMarker
from sidecar.checkpoints.formats import Format, file_group


@dataclass(frozen=True, slots=True)
class MarkerGroup:
    """The group of a user's marker. `checkpoint`: the name of the one it marks; None: it marks all of the directory."""

    checkpoint: str | None


FileGroup = str | MarkerGroup
"""A sub-folder or a group of files by its name, or the user's marker."""


def group_of(name: str, *, marker: CompleteMarker | None, formats: Sequence[Format]) -> FileGroup | None:
    """Return the group that a file in a directory of checkpoints belongs to; None: it belongs to none.

    `formats`: those that are looked for.
    """
    if marker is not None:
        if marker.marks_all(name):
            return MarkerGroup(None)
        if (checkpoint := marker.checkpoint(name)) is not None:
            return MarkerGroup(checkpoint)
    return file_group(name, formats)
