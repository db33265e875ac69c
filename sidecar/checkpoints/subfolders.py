"""The sub-folders of the checkpoint directory that `checkpoint_glob` enters, each a directory of its own.

A sub-folder is noticed by the look at the directory above it. Those in which something changed lately are looked at in
each sweep, the others in turn, so that all of them are within `full_sweep_seconds`. What cannot be read stays with its
folder: the others go on. Links are not entered.
"""

import errno
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from sidecar.checkpoints.checkpoint_directory import CheckpointDirectory, Findings
from sidecar.checkpoints.discovery_order import natural
from sidecar.checkpoints.scan import in_folder, parent_of

MOST_FOLDERS: Final = 5000
"""Sub-folders that are looked at: each costs some memory, and a request to the storage now and then."""

_EACH_SWEEP: Final = 64
"""So many of the folders that changed last are looked at in each sweep, and so many of the others in turn."""

_WATCHED: Final = 4
"""Sub-folders that file events are asked for: two threads each. Sweeps see the others."""

_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # a file or a link is there instead


class Subfolders:
    """What the sub-folders hold, noted in `findings`.

    Args:
        root: the directory above all of them.
        new: makes the directory of a path from there.
        findings: where what is found is noted.
        never: the path of one in which nothing is a checkpoint: where the state lies.
        full_sweep_seconds: by then every sub-folder was looked at again.
    """

    def __init__(
        self,
        root: CheckpointDirectory,
        new: Callable[[str], CheckpointDirectory],
        findings: Findings,
        *,
        never: str | None = None,
        full_sweep_seconds: float,
    ) -> None:
        self._root = root
        self._new = new
        self._findings = findings
        self._never = never
        self._full_sweep_seconds = full_sweep_seconds
        self._directories: dict[str, CheckpointDirectory] = {}  # by path; the one that changed last is the last
        self._inner: dict[str, set[str]] = {}  # the paths directly in each
        self._turn: list[str] = []  # that are still to be looked at in this round
        self._looked_at = float("-inf")

    def look(self, now: float, hints: Collection[str] | None, *, sweep: bool) -> None:
        """Look at those that may have changed, after the root was looked at; `hints` are paths from the root."""
        asked = self._enter("", self._root)
        hinted = _by_folder(hints or ())
        asked += [path for path in self._directories if path in hinted or self._directories[path].is_due(now)]
        if sweep or hints is None:
            asked += self._in_sweep(now)
        waiting, seen = asked[::-1], set[str]()
        while waiting:
            path = waiting.pop()
            if path in seen or path not in self._directories:
                continue
            seen.add(path)
            self._look_at(path, now, None if hints is None else hinted.get(path, ()), sweep=sweep)
            if path in self._directories:
                waiting += self._enter(path, self._directories[path])[::-1]

    def forget(self) -> None:
        """Forget all of them, as the checkpoint directory is gone."""
        for path in self._inner.get("", set()).copy():
            self._leave(path)

    def newest(self, root: Path) -> tuple[Path, ...]:
        """Return those in which something changed last."""
        return tuple(root / path for path in list(self._directories)[-_WATCHED:])

    def _enter(self, above: str, directory: CheckpointDirectory) -> list[str]:
        """Note the sub-folders of a directory; returns those that are new."""
        there = {in_folder(above, name) for name in directory.folders} - {self._never}
        inner = self._inner.setdefault(above, set())
        for path in inner - there:
            self._leave(path)
        new = sorted(there - inner, key=natural)
        room = max(0, MOST_FOLDERS - len(self._directories))
        left_out = f"{len(new) - room} sub-folders are not looked at: there are more than {MOST_FOLDERS}"
        self._findings.note_reasons(f"/folders {above}", [(above or ".", left_out)] if len(new) > room else ())
        for path in (entered := new[:room]):
            self._directories[path] = self._new(path)
            inner.add(path)
        return entered

    def _leave(self, path: str) -> None:
        """Forget a sub-folder, and those in it."""
        for each in self._inner.pop(path, set()).copy():
            self._leave(each)
        self._directories.pop(path).forget()
        self._inner[parent_of(path)].discard(path)
        for about in ("/folder", "/folders"):
            self._findings.note_reasons(f"{about} {path}", ())

    def _look_at(self, path: str, now: float, hints: Collection[str] | None, *, sweep: bool) -> None:
        directory = self._directories[path]
        try:
            is_changed = directory.look(now, hints, sweep=sweep)
        except OSError as error:
            if error.errno in _GONE:
                self._leave(path)
                return
            directory.keep(error)
            self._findings.note_reasons(f"/folder {path}", [(path, f"cannot be read: {error.strerror}")])
            return
        self._findings.note_reasons(f"/folder {path}", ())
        if is_changed:
            self._directories[path] = self._directories.pop(path)

    def _in_sweep(self, now: float) -> list[str]:
        """Return the folders that are looked at in this sweep."""
        paths = list(self._directories)
        seconds = min(max(0.0, now - self._looked_at), self._full_sweep_seconds)
        self._looked_at = now
        share = max(_EACH_SWEEP, int(len(paths) * seconds / self._full_sweep_seconds))
        if not self._turn:
            self._turn = paths
        turn, self._turn = self._turn[-share:], self._turn[:-share]
        return [*paths[-_EACH_SWEEP:], *turn]


def _by_folder(hints: Collection[str]) -> dict[str, set[str]]:
    """Names by the folder that they are in, for each folder of each path."""
    found: dict[str, set[str]] = {}
    for hint in hints:
        parts = hint.split("/")
        for end in range(1, len(parts)):
            found.setdefault("/".join(parts[:end]), set()).add(parts[end])
    return found
