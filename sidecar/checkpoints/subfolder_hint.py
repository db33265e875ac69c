"""Find checkpoints elsewhere: in sub-folders that are not scanned, under odd names, in a folder with a similar name.

Each comes with what to type or to set.

The search lists a bounded number of folders and reads no file. It blocks for as long as the storage does.
"""

import contextlib
import difflib
import glob
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from sidecar.checkpoints.checkpoint_glob import NOT_ENTERED
from sidecar.checkpoints.files import Listing, list_files, stat_files
from sidecar.checkpoints.formats import FORMATS, Format, file_group
from sidecar.checkpoints.scan import in_folder
from sidecar.system.bounded_calls import Calls, HangingError
from sidecar.system.clock import Clock
from sidecar.system.plain_text import listed

_SEARCH_SECONDS: Final = 30.0  # between two searches
_SEARCH_SHARE: Final = 1000  # a search may take one part in 1,000 of the time: 100,000 names take 0.2 s
_DEEPEST: Final = 2  # folders below the checkpoint directory
_MOST_FOLDERS: Final = 100
_MOST_PATTERNS: Final = 3
_MOST_NEIGHBOURS: Final = 1000
_OF_ONE_RUN: Final = re.compile(
    r"[0-9.]+|(.*[^a-z])?(best|last|latest|final|(steps?|epochs?|iter|iterations?|ckpt|checkpoint|update)[^a-z]*[0-9].*)",
    re.IGNORECASE,
)
"""Names of folders that hold one checkpoint of a run, or its best or newest one."""

_RUNS_NAMED: Final = 3


def names_in(folder: Path, listing: Listing | None = None, formats: Iterable[Format] = FORMATS.values()) -> list[str]:
    """Return the names of possible checkpoints directly in a folder, sorted. Raises OSError.

    `listing`: the folder's listing, if it was read before.
    """
    listing = list_files(folder) if listing is None else listing
    return sorted({candidate.name for format_ in formats for candidate in format_.candidates(folder, listing)})


def remedy_below(root: Path, never: str | None = None) -> str | None:
    """Return a sentence that recommends a setting by which checkpoints in sub-folders are found; None without any.

    If there are none, files of TensorFlow 1 in the folder itself are named with their setting.

    `never`: the path of a sub-folder that is not searched, because it holds no checkpoints.
    """
    places = dict(_found_below(root, never))
    if not places:
        return of_tensorflow_1(root)
    patterns = {pattern_of(folder) for folder in places}
    if len(patterns) > _MOST_PATTERNS:
        patterns = {re.sub("[^/]+", "*", pattern) for pattern in patterns}
    setting = f'set checkpoint_glob = "{",".join(sorted(patterns))}"'
    if (runs := of_several_runs(root, places)) is not None:
        return f"{runs}; or, if all of it is one run, {setting}"
    folder, names = next(iter(places.items()))
    return f"sub-folders hold checkpoints ({in_folder(folder, names[-1])}): {setting}"


def of_several_runs(root: Path, names_by_folder: Mapping[str, Sequence[str]]) -> str | None:
    """Return a sentence if sub-folders look like runs of their own, in which the same checkpoints occur again.

    A folder whose name says when or which (`step-500`, `500`, `best`) belongs to a run: `exp1/step-5/model.pt` is of
    `exp1`. So `exp1/ckpt-5` and `exp2/ckpt-5` are two runs, `epoch_1/ckpt-5` and `epoch_2/ckpt-5` are one.
    """
    runs_of: dict[str, set[str]] = {}
    for folder, names in names_by_folder.items():
        parts = folder.split("/")
        depth = next((index for index, part in enumerate(parts) if _OF_ONE_RUN.fullmatch(part)), len(parts))
        if run := "/".join(parts[:depth]):
            for name in names:
                runs_of.setdefault("/".join([*parts[depth:], name]), set()).add(run)
    runs = sorted(set[str]().union(*(found for found in runs_of.values() if len(found) > 1)))
    if not runs:
        return None
    command = f"sidecar run {shlex.quote(str(root / runs[0]))}"
    return f"{listed(runs, _RUNS_NAMED)} look like {len(runs)} runs: give each one its own daemon, `{command}`"


def similar_folder(path: Path) -> str:
    """Return a question for the path of a folder that does not exist; empty if none beside it has a similar name."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, _MOST_NEIGHBOURS) if entry.is_dir()]
    except OSError:
        return ""
    close = [] if path.name in names else difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {close[0]}?" if close else ""


def of_tensorflow_1(folder: Path) -> str | None:
    """Return the line for files that savers of TensorFlow 1 write in their first format: one, and `.meta` beside it.

    Nothing tells their names apart from others, so a pattern must. None: there is no such file.
    """
    with contextlib.suppress(OSError):
        for meta in sorted(folder.glob("*.meta")):
            name = meta.name.removesuffix(".meta")
            if (folder / name).is_file() and not (folder / f"{name}.index").exists():
                return f"{name} is of the first format of TensorFlow 1: {pattern_line(name)}"
    return None


def pattern_line(name: str) -> str:
    """Return the line with a pattern of names like this one, with any number for the one at its end."""
    suffix = Path(name).suffix
    pattern = f"*{suffix}" if suffix else name
    if name[-1:].isdecimal():
        pattern = f"{name.rstrip('0123456789')}*[0-9]"
    return f"write checkpoint_pattern = {json.dumps(pattern)} into sidecar.toml"


class SubfolderHint:
    """Search unscanned sub-folders for checkpoints now and then, as long as none was found in the scanned ones.

    `never`: the path of a sub-folder that is not searched, because it holds no checkpoints.
    """

    def __init__(self, root: Path, never: str | None, calls: Calls, clock: Clock) -> None:
        self._root = root
        self._never = never
        self._calls = calls
        self._clock = clock
        self._remedy: str | None = None
        self._search_at = float("-inf")

    def remedy(self, now: float) -> str | None:
        """Return the sentence of `remedy_below` by the last search; None if that found no checkpoints.

        Search again if the last search was long ago. If the search hangs, the result of the last one stays.
        """
        if now >= self._search_at:
            begin = self._clock.now()
            with contextlib.suppress(HangingError):
                self._remedy = self._calls("/below", lambda: remedy_below(self._root, self._never))
            self._search_at = now + max(_SEARCH_SECONDS, _SEARCH_SHARE * (self._clock.now() - begin))
        return self._remedy


def _found_below(root: Path, never: str | None) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, names of the checkpoints in it) for the folders that hold checkpoints, highest names first."""
    waiting, left = [("", 0)], _MOST_FOLDERS
    while waiting and left > 0:
        folder, level = waiting.pop(0)
        left -= 1
        try:
            listing = _listing(root / folder)
            names = names_in(root / folder, listing)
        except OSError:
            continue
        if folder and names:
            yield folder, names
        inner = [name for name in listing.folders if name not in names and name not in NOT_ENTERED]
        if level < _DEEPEST:
            paths = [in_folder(folder, name) for name in reversed(inner)]
            waiting += [(name, level + 1) for name in paths if name != never]


def _listing(folder: Path) -> Listing:
    """List the sub-folders of a folder, and the files that may belong to checkpoints. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(descriptor) as entries:
            names = [each.name for each in entries if file_group(each.name) or each.is_dir(follow_symlinks=False)]
        return stat_files(folder, descriptor, names)
    finally:
        os.close(descriptor)


def pattern_of(folder: str) -> str:
    """Return a glob for the checkpoints in a folder, and in folders whose names differ in their numbers only."""
    parts = ["*".join(glob.escape(text) for text in re.split("[0-9]+", part)) for part in folder.split("/")]
    return "/".join([*parts, "*"])
