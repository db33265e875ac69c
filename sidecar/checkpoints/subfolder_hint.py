"""Checkpoints in sub-folders where nobody looks for them, and the setting that would find them.

It reads listings of a bounded number of folders, and no file. It blocks for as long as the storage does.
"""

import contextlib
import glob
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from sidecar.bounded_calls import Calls, HangingError
from sidecar.checkpoints.checkpoint_glob import NOT_ENTERED
from sidecar.checkpoints.files import Listing, list_files
from sidecar.checkpoints.formats import FORMATS, Format
from sidecar.checkpoints.scan import in_folder

_SEARCH_SECONDS: Final = 30.0  # between two searches
_LEVELS: Final = 2
_MOST_FOLDERS: Final = 100
_MOST_PATTERNS: Final = 3


def names_in(folder: Path, listing: Listing | None = None, formats: Iterable[Format] = FORMATS.values()) -> list[str]:
    """Return the names of what may be checkpoints directly in a folder, by its listing. Raises OSError."""
    listing = list_files(folder) if listing is None else listing
    return sorted({candidate.name for format_ in formats for candidate in format_.candidates(folder, listing)})


def remedy_below(root: Path, never: str | None = None) -> str | None:
    """Return, as a sentence, what to set so that checkpoints in sub-folders are found; None if there are none.

    `never`: the path of a sub-folder that holds none, whatever lies in it.
    """
    places = list(_found_below(root, never))
    if not places:
        return None
    patterns = {pattern_of(folder) for folder, _ in places}
    if len(patterns) > _MOST_PATTERNS:
        patterns = {re.sub("[^/]+", "*", pattern) for pattern in patterns}
    return (
        f'sub-folders hold checkpoints ({in_folder(*places[0])}): set checkpoint_glob = "{",".join(sorted(patterns))}"'
    )


class SubfolderHint:
    """Search sub-folders that are not scanned, now and then, because no checkpoint was ever found where it should lie.

    Args:
        root: The checkpoint directory.
        never: The path of a sub-folder that holds no checkpoint, whatever lies in it.
        calls: Makes calls that may hang.
    """

    def __init__(self, root: Path, never: str | None, calls: Calls) -> None:
        self._root = root
        self._never = never
        self._calls = calls
        self._remedy: str | None = None
        self._search_at = float("-inf")

    def remedy(self, now: float) -> str | None:
        """Return what to set so that checkpoints in sub-folders are found, by the last search; None if there are none.

        Search again if the last search was long ago. If that hangs, the result of the last search stays.
        """
        if now >= self._search_at:
            self._search_at = now + _SEARCH_SECONDS
            with contextlib.suppress(HangingError):
                self._remedy = self._calls("/below", lambda: remedy_below(self._root, self._never))
        return self._remedy


def _found_below(root: Path, never: str | None) -> Iterator[tuple[str, str]]:
    """Folders that hold checkpoints, the newest names first, each with one of them."""
    waiting, left = [("", 0)], _MOST_FOLDERS
    while waiting and left > 0:
        folder, level = waiting.pop(0)
        left -= 1
        try:
            listing = list_files(root / folder)
            names = names_in(root / folder, listing)
        except OSError:
            continue
        if folder and names:
            yield folder, names[-1]
        inner = [name for name in listing.folders if name not in names and name not in NOT_ENTERED]
        if level < _LEVELS:
            paths = [in_folder(folder, name) for name in reversed(inner)]
            waiting += [(name, level + 1) for name in paths if name != never]


def pattern_of(folder: str) -> str:
    """Return a pattern for what lies in a folder and in those that are named alike, but for their numbers."""
    parts = ["*".join(glob.escape(text) for text in re.split("[0-9]+", part)) for part in folder.split("/")]
    return "/".join([*parts, "*"])
