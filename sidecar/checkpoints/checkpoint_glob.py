"""Which paths below the checkpoint directory hold checkpoints, as the setting `checkpoint_glob` says. No I/O."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from typing import Final

NOT_ENTERED: Final = ("variables", "assets")
"""Folders in SavedModels, whose marker comes last: what lies in them is not a checkpoint of its own."""


@dataclass(frozen=True, slots=True)
class CheckpointGlob:
    """Patterns of checkpoints' names; `*` stands for the checkpoints in the directory itself.

    Each name of a path is compared on its own, as shells do: `*` does not reach across a `/`.
    """

    patterns: tuple[tuple[re.Pattern[str], ...], ...]

    @classmethod
    def of(cls, patterns: Iterable[str]) -> "CheckpointGlob":
        """Return the glob of these patterns, which the settings checked."""
        return cls(tuple(tuple(re.compile(translate(part)) for part in pattern.split("/")) for pattern in patterns))

    @property
    def depth(self) -> int:
        """Return how many folders below the checkpoint directory a checkpoint may lie."""
        return max(len(pattern) for pattern in self.patterns) - 1

    def accepts(self, name: str) -> bool:
        """Return whether a checkpoint of that name, `epoch_1/ckpt-5`, is one."""
        parts = name.split("/")
        return any(len(parts) == len(pattern) and _match(pattern, parts) for pattern in self.patterns)

    def enters(self, folder: str) -> bool:
        """Return whether checkpoints may lie in that folder, or further down in it."""
        parts = folder.split("/")
        return any(len(parts) < len(pattern) and _match(pattern, parts) for pattern in self.patterns)


def _match(pattern: tuple[re.Pattern[str], ...], parts: list[str]) -> bool:
    return all(expected.match(part) for expected, part in zip(pattern, parts, strict=False))


TOP: Final = CheckpointGlob.of(["*"])
"""The checkpoint directory itself."""
