"""Scan the sub-folders of the checkpoint directory that `checkpoint_glob` enters, each as a directory of its own.

The scan of a directory finds the sub-folders in it. Sub-folders that changed lately are scanned in each sweep, the
others in turn, so that all of them are scanned within `full_sweep_seconds`. An error in one sub-folder does not stop
the scan of the others. Links are not entered.
"""

import errno
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.checkpoints.checkpoint_directory import CheckpointDirectory
from sidecar.checkpoints.discovery_order import natural
from sidecar.checkpoints.scan import in_folder, parent_of

MOST_FOLDERS: Final = 5000
"""The most sub-folders that are scanned. Each costs some memory, and a request to the storage now and then."""

_FOLDERS_PER_SWEEP: Final = 64
"""This many of the folders that changed last are scanned in each sweep, and this many of the others in turn."""

_WATCHED: Final = 4
"""The most sub-folders with file events, which take two threads each. Sweeps see the others."""

_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # the last two: a file or a link replaced the folder


@dataclass(eq=False, kw_only=True)
class Subfolders:
    """Hold the sub-folders of the checkpoint directory, and decide which of them each scan reads."""

    root: CheckpointDirectory  # the checkpoint directory, above all sub-folders
    new: Callable[[str], CheckpointDirectory]  # creates the directory of a path from `root`
    never: str | None = None  # the path of the sub-folder that holds the state, in which nothing is a checkpoint
    full_sweep_seconds: float  # every sub-folder is scanned again within this time
    _directories: dict[str, CheckpointDirectory] = field(default_factory=dict)  # by path; the one changed last is last
    _inner: dict[str, set[str]] = field(default_factory=dict)  # by path: the paths of the sub-folders directly in it
    _unscanned: list[str] = field(default_factory=list)  # paths that are still to be scanned in this round
    _swept_at: float = float("-inf")
    _unreadable: dict[str, str] = field(default_factory=dict)  # by path: why it cannot be read
    # By path: how many of the sub-folders directly in it are not scanned
    _left_out: dict[str, str] = field(default_factory=dict)

    def scan(self, now: float, hints: Collection[str] | None, *, sweep: bool) -> None:
        """Scan the sub-folders that may have changed. The root must have been scanned before.

        `hints`: paths from the root that file events reported; None: there are no events. `sweep`: whether some other
        sub-folders are scanned, too.
        """
        due = self._enter("", self.root)
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
        """Forget all sub-folders, because the checkpoint directory is gone."""
        for path in self._inner.get("", set()).copy():
            self._leave(path)

    def directories(self) -> Iterable[CheckpointDirectory]:
        """Return the sub-folders that are scanned."""
        return self._directories.values()

    def waiting(self) -> Iterator[tuple[str, str]]:
        """Return (path, reason) of sub-folders that cannot be read, or that are not scanned."""
        yield from self._left_out.items()
        yield from self._unreadable.items()

    def newest(self, root: Path) -> tuple[Path, ...]:
        """Return the paths below `root` of the few sub-folders that changed last."""
        return tuple(root / path for path in list(self._directories)[-_WATCHED:])

    def _enter(self, above: str, directory: CheckpointDirectory) -> list[str]:
        """Update the sub-folders of the directory at the path `above`, and return the paths of new ones."""
        existing = {in_folder(above, name) for name in directory.folders} - {self.never}
        inner = self._inner.setdefault(above, set())
        for path in inner - existing:
            self._leave(path)
        new = sorted(existing - inner, key=natural)
        room = max(0, MOST_FOLDERS - len(self._directories))
        self._left_out.pop(above or ".", None)
        if len(new) > room:
            reason = f"{len(new) - room} sub-folders are not scanned: there are more than {MOST_FOLDERS}"
            self._left_out[above or "."] = reason
        for path in (entered := new[:room]):
            self._directories[path] = self.new(path)
            inner.add(path)
        return entered

    def _leave(self, path: str) -> None:
        """Forget a sub-folder, and all sub-folders in it."""
        for inner in self._inner.pop(path, set()).copy():
            self._leave(inner)
        del self._directories[path]
        self._inner[parent_of(path)].discard(path)
        self._unreadable.pop(path, None)
        self._left_out.pop(path, None)

    def _scan(self, path: str, now: float, hints: Collection[str] | None, *, sweep: bool) -> None:
        """Scan one sub-folder. If it changed, it becomes the last; if it is gone, it is forgotten."""
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
        """Return the paths to scan in this sweep: those that changed last, and the next ones of this round."""
        paths = list(self._directories)
        seconds = min(max(0.0, now - self._swept_at), self.full_sweep_seconds)
        self._swept_at = now
        share = max(_FOLDERS_PER_SWEEP, int(len(paths) * seconds / self.full_sweep_seconds))
        if not self._unscanned:
            self._unscanned = paths
        turn, self._unscanned = self._unscanned[-share:], self._unscanned[:-share]
        return [*paths[-_FOLDERS_PER_SWEEP:], *turn]


def _by_folder(hints: Collection[str]) -> dict[str, set[str]]:
    """Return the names in `hints` by the path of the folder that they are in, for each folder of each path."""
    names: dict[str, set[str]] = {}
    for hint in hints:
        parts = hint.split("/")
        for end in range(1, len(parts)):
            names.setdefault("/".join(parts[:end]), set()).add(parts[end])
    return names
