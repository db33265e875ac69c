"""Decide which files belong together: those of a checkpoint, whose main file gives the group its name, or a marker.

The user's training may write a marker last, such as `{name}.STABLE` or `_SUCCESS`. It is required in addition to the
files of the format: a marker that is written too early does not make a checkpoint complete. Markers are opened instead
of searched in listings, which may be outdated on NFS.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import is_there
from sidecar.checkpoints.formats import Format, file_group

NAME: Final = "{name}"


class CompleteMarker:
    """Find markers by the pattern of their names, in which `{name}` stands for the name of the checkpoint.

    Without `{name}`, one file marks all checkpoints in the same directory. A checkpoint that is a folder has its own
    marker in that folder, as with the pattern `{name}/_SUCCESS`.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        before, _, after = pattern.partition(NAME)
        self._names = re.compile(f"{re.escape(before)}(.+){re.escape(after)}", re.DOTALL) if NAME in pattern else None

    def path(self, name: str, *, is_folder: bool) -> str:
        """Return the path of a checkpoint's marker, from the checkpoint directory."""
        if self._names is None and is_folder:
            return f"{name}/{self._pattern}"
        return self._pattern.replace(NAME, name)

    def is_there(self, root: Path, name: str, *, is_folder: bool) -> bool:
        """Return whether a checkpoint is marked. Raises OSError if that cannot be found out."""
        return is_there(root / self.path(name, is_folder=is_folder))

    def marks_all(self, file: str) -> bool:
        """Return whether a file in the checkpoint directory marks all checkpoints in the same directory."""
        return self._names is None and file == self._pattern

    def checkpoint(self, file: str) -> str | None:
        """Return the name of the checkpoint that a file in the checkpoint directory marks; None: it marks none."""
        match = None if self._names is None else self._names.fullmatch(file)
        return None if match is None else match[1]


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
