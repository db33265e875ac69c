"""Scan the sub-folders of the checkpoint directory that `checkpoint_glob` enters, each as a directory of its own.

A sub-folder is noticed by the scan of the directory above it. Those in which something changed lately are scanned in
each sweep, the others in turn, so that all of them are scanned within `full_sweep_seconds`. An error stays with its
folder: the others go on. Links are not entered.
"""

import errno
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from sidecar.checkpoints.checkpoint_directory import CheckpointDirectory
from sidecar.checkpoints.discovery_order import natural
from sidecar.checkpoints.scan import in_folder, parent_of

MOST_FOLDERS: Final = 5000
"""Sub-folders that are scanned: each costs some memory, and a request to the storage now and then."""

_EACH_SWEEP: Final = 64
"""This many of the folders that changed last are scanned in each sweep, and this many of the others in turn."""

_WATCHED: Final = 4
"""Sub-folders that file events are due for: two threads each. Sweeps see the others."""

_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # a file or a link is there instead


class Subfolders:
    """Hold the sub-folders.

    Args:
        root: the directory above all of them.
        new: makes the directory of a path from there.
        never: the path of the sub-folder in which nothing is a checkpoint: where the state lies.
        full_sweep_seconds: by then every sub-folder was scanned again.
    """

    def __init__(
        self,
        root: CheckpointDirectory,
        new: Callable[[str], CheckpointDirectory],
        *,
        never: str | None = None,
        full_sweep_seconds: float,
    ) -> None:
        self._root = root
        self._new = new
        self._never = never
        self._full_sweep_seconds = full_sweep_seconds
        self._directories: dict[str, CheckpointDirectory] = {}  # by path; the one that changed last is the last
        self._inner: dict[str, set[str]] = {}  # the paths directly in each
        self._turn: list[str] = []  # that are still to be scanned in this round
        self._swept_at = float("-inf")
        self._unreadable: dict[str, str] = {}  # why, by path
        self._left_out: dict[str, str] = {}  # how many of those directly in a path are not scanned

    def scan(self, now: float, hints: Collection[str] | None, *, sweep: bool) -> None:
        """Scan those that may have changed, after the root was scanned; `hints` are paths from the root."""
        due = self._enter("", self._root)
        hinted = _by_folder(hints or ())
        due += [path for path in self._directories if path in hinted or self._directories[path].is_due(now)]
        if sweep or hints is None:
            due += self._in_sweep(now)
        waiting, scanned = due[::-1], set[str]()
        while waiting:
            path = waiting.pop()
            if path in scanned or path not in self._directories:
                continue
            scanned.add(path)
            self._scan(path, now, None if hints is None else hinted.get(path, ()), sweep=sweep)
            if path in self._directories:
                waiting += self._enter(path, self._directories[path])[::-1]

    def forget(self) -> None:
        """Forget all of them, as the checkpoint directory is gone."""
        for path in self._inner.get("", set()).copy():
            self._leave(path)

    def directories(self) -> Iterable[CheckpointDirectory]:
        """Return those that are scanned."""
        return self._directories.values()

    def waiting(self) -> Iterator[tuple[str, str]]:
        """Return (path, reason) of sub-folders that cannot be read, or that are not scanned."""
        yield from self._left_out.items()
        yield from self._unreadable.items()

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
        self._left_out.pop(above or ".", None)
        if len(new) > room:
            reason = f"{len(new) - room} sub-folders are not looked at: there are more than {MOST_FOLDERS}"
            self._left_out[above or "."] = reason
        for path in (entered := new[:room]):
            self._directories[path] = self._new(path)
            inner.add(path)
        return entered

    def _leave(self, path: str) -> None:
        """Forget a sub-folder, and those in it."""
        for inner in self._inner.pop(path, set()).copy():
            self._leave(inner)
        del self._directories[path]
        self._inner[parent_of(path)].discard(path)
        self._unreadable.pop(path, None)
        self._left_out.pop(path, None)

    def _scan(self, path: str, now: float, hints: Collection[str] | None, *, sweep: bool) -> None:
        directory = self._directories[path]
        try:
            is_changed = directory.scan(now, hints, sweep=sweep)
        except OSError as error:
            if error.errno in _GONE:
                self._leave(path)
                return
            directory.retain(error)
            self._unreadable[path] = f"cannot be read: {error.strerror}"
            return
        self._unreadable.pop(path, None)
        if is_changed:
            self._directories[path] = self._directories.pop(path)

    def _in_sweep(self, now: float) -> list[str]:
        """Return the folders that are scanned in this sweep."""
        paths = list(self._directories)
        seconds = min(max(0.0, now - self._swept_at), self._full_sweep_seconds)
        self._swept_at = now
        share = max(_EACH_SWEEP, int(len(paths) * seconds / self._full_sweep_seconds))
        if not self._turn:
            self._turn = paths
        turn, self._turn = self._turn[-share:], self._turn[:-share]
        return [*paths[-_EACH_SWEEP:], *turn]


def _by_folder(hints: Collection[str]) -> dict[str, set[str]]:
    """Return names by the folder that they are in, for each folder of each path."""
    names: dict[str, set[str]] = {}
    for hint in hints:
        parts = hint.split("/")
        for end in range(1, len(parts)):
            names.setdefault("/".join(parts[:end]), set()).add(parts[end])
    return names
