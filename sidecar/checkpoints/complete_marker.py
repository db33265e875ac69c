"""The user's own marker of complete checkpoints, such as `{name}.STABLE` or `_SUCCESS`: what the writer makes last.

It is asked for on top of what the format needs: a marker that comes too early declares nothing complete. Markers are
opened, not looked up in listings, which on NFS may be old.
"""

import re
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import is_there

NAME: Final = "{name}"

_FAMILY: Final = "\0marker "  # no file is named so


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
        """Where the marker of a checkpoint lies, from the checkpoint directory."""
        if self._names is None and is_folder:
            return f"{name}/{self._pattern}"
        return self._pattern.replace(NAME, name)

    def is_there(self, root: Path, name: str, *, is_folder: bool) -> bool:
        """Whether a checkpoint is marked; raises OSError if that cannot be found out."""
        return is_there(root / self.path(name, is_folder=is_folder))

    def family(self, file: str) -> str | None:
        """What a marker in the checkpoint directory is called among families; None: it is none."""
        if self._names is None:
            return _FAMILY if file == self._pattern else None
        found = self._names.fullmatch(file)
        return None if found is None else f"{_FAMILY}{found[1]}"

    @staticmethod
    def marked(family: str) -> str | None:
        """Which checkpoint such a family marks: its name, or "" for all of them; None: it is another family."""
        return family.removeprefix(_FAMILY) if family.startswith(_FAMILY) else None
