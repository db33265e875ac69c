"""The user's own marker of complete checkpoints, such as `{name}.STABLE` or `_SUCCESS`: what the writer makes last.

It is required in addition to what the format needs: a marker that comes too early declares nothing complete. Markers
are opened, not looked up in listings, which on NFS may be old.
"""

import re
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import is_there

NAME: Final = "{name}"


class CompleteMarker:
    """A pattern: a file in the checkpoint directory, in whose name `{name}` is the checkpoint's.

    Without `{name}` it is one file for all that lies beside it, but for checkpoints that are folders one in each, as
    `{name}/_SUCCESS` also says.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        before, _, after = pattern.partition(NAME)
        self._names = re.compile(f"{re.escape(before)}(.+){re.escape(after)}", re.DOTALL) if NAME in pattern else None

    def path(self, name: str, *, is_folder: bool) -> str:
        """Return where the marker of a checkpoint lies, from the checkpoint directory."""
        if self._names is None and is_folder:
            return f"{name}/{self._pattern}"
        return self._pattern.replace(NAME, name)

    def is_there(self, root: Path, name: str, *, is_folder: bool) -> bool:
        """Return whether a checkpoint is marked; raises OSError if that cannot be found out."""
        return is_there(root / self.path(name, is_folder=is_folder))

    def marks_all(self, file: str) -> bool:
        """Return whether a file in the checkpoint directory is the marker of all that lies beside it."""
        return self._names is None and file == self._pattern

    def checkpoint(self, file: str) -> str | None:
        """Return the name of the checkpoint that a file in the checkpoint directory marks; None: it marks none."""
        match = None if self._names is None else self._names.fullmatch(file)
        return None if match is None else match[1]
