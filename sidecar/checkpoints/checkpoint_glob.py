"""Decide which paths below the checkpoint directory hold checkpoints, by the setting `checkpoint_glob`. No I/O."""

import glob
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from typing import Final

NOT_ENTERED: Final = ("variables", "assets")
"""Folders of SavedModels. The files in them are not checkpoints, even before the SavedModel's marker is written."""


@dataclass(frozen=True, slots=True)
class CheckpointGlob:
    """Hold the patterns of the paths of checkpoints; `*` matches the checkpoints in the directory itself.

    Each part of a path is compared on its own, as shells do: `*` does not match a `/`.
    """

    patterns: tuple[tuple[re.Pattern[str], ...], ...]

    @classmethod
    def of(cls, patterns: Iterable[str]) -> "CheckpointGlob":
        """Return the glob of these patterns. The settings have validated them."""
        return cls(tuple(tuple(re.compile(translate(part)) for part in pattern.split("/")) for pattern in patterns))

    @property
    def depth(self) -> int:
        """Return how many folders below the checkpoint directory a checkpoint may lie."""
        return max(len(pattern) for pattern in self.patterns) - 1

    def accepts(self, name: str) -> bool:
        """Return whether a path such as `epoch_1/ckpt-5` may be a checkpoint."""
        parts = name.split("/")
        return any(len(parts) == len(pattern) and _match(pattern, parts) for pattern in self.patterns)

    def enters(self, folder: str) -> bool:
        """Return whether checkpoints may lie in a folder, or further down in it."""
        parts = folder.split("/")
        return any(len(parts) < len(pattern) and _match(pattern, parts) for pattern in self.patterns)

    def names(self, folder: str) -> bool:
        """Return whether a pattern enters a folder by its name, so that the user knows what lies in it."""
        parts = folder.split("/")
        written = [translate(glob.escape(part)) for part in parts]
        return any(
            len(parts) < len(pattern) and [part.pattern for part in pattern[: len(parts)]] == written
            for pattern in self.patterns
        )


def _match(pattern: tuple[re.Pattern[str], ...], parts: list[str]) -> bool:
    """Return whether the parts of a path match the first parts of a pattern."""
    return all(expected.match(part) for expected, part in zip(pattern, parts, strict=False))
