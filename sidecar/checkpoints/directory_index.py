"""Find out what changed in a directory of checkpoints since the last scan, without reading unchanged files.

If nobody writes into a directory of 100,000 files, a scan costs one `fstat` of the directory:

- The scan calls `stat` for each name that file events reported.
- A sweep lists the directory if its times changed, because then something was created, renamed or deleted. A listing
  gives names and inodes. A name has changed if it is new, has another inode or is gone.
- A file that is rewritten under its name changes neither the listing nor the directory's times. So each sweep compares
  some files with the last reading: all files if they are few, else enough to compare all within `full_sweep_seconds`.
  The directory is listed at least that often, too, in case its times are wrong.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.checkpoints.candidate_decision import KnownCandidate
from sidecar.checkpoints.file_group import FileGroup
from sidecar.checkpoints.files import Listing, is_temporary
from sidecar.system.bounded_calls import Calls, HangingError
from sidecar.system.clock import Clock
from sidecar.system.confined import open_folder
from sidecar.system.entry_errors import Entry, Meaning, meaning

_COARSE_SECONDS: Final = 2.0
"""Two changes within these seconds may leave the same times: the resolution of the coarsest filesystem."""

_FILES_PER_SWEEP: Final = 256
"""At least this many files are compared in each sweep, so the usual directory is compared as a whole: 1 ms of work."""

_LISTING_SHARE: Final = 1000
"""While file events report changes, listing may take one part in 1,000 of the time: 100,000 names take 0.1 s."""

Times = tuple[int, int]


@dataclass(eq=False, kw_only=True)
class DirectoryIndex:
    """Hold the names in a directory that may belong to checkpoints, by group of files."""

    root: Path  # the checkpoint directory, which may not exist yet
    group_of: Callable[[str], FileGroup | None]  # returns the group of a file by its name; None if it belongs to none
    below: str = ""  # the path from `root` of the folder that is indexed. No link in that path is followed.
    full_sweep_seconds: float  # all files are compared again within this time
    clock: Clock
    _inodes: dict[str, int] = field(default_factory=dict)  # by name, as listed
    _members: dict[FileGroup, tuple[str, ...]] = field(default_factory=dict)  # names by group
    _identity: tuple[int, int] | None = None
    _changed: tuple[Times, float] | None = None  # (the directory's times, when they were first seen)
    _listed: tuple[Times, float, float] | None = None  # the last listing: (times, begun at, seconds it took)
    _uncompared: list[FileGroup] = field(default_factory=list)  # groups still to be compared in this round
    _pending: set[FileGroup] = field(default_factory=set)  # groups that changed: they stay here if listing fails midway
    _compared_at: float = float("-inf")

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """Open the directory and yield its descriptor. On NFS this refreshes the cached times. Raises OSError."""
        with contextlib.ExitStack() as stack:
            opened = stack.enter_context(open_folder(self.root))
            if self.below:
                opened = stack.enter_context(opened.folder(self.below))
            yield opened.descriptor

    def forget(self) -> None:
        """Forget all names, because the directory is gone."""
        self._inodes.clear()
        self._members.clear()
        self._identity = self._changed = self._listed = None
        self._uncompared = []

    def changed(self, descriptor: int, now: float, hints: Collection[str] | None, *, sweep: bool) -> set[FileGroup]:
        """Return the groups in which names were added, removed or replaced since the last call. Raises OSError.

        `hints`: the names that file events reported; None: there are no events, so the directory is listed if its times
        changed. `sweep`: list the directory in spite of events, unless listing is slow.
        """
        status = os.fstat(descriptor)
        times, identity = (status.st_mtime_ns, status.st_ctime_ns), (status.st_dev, status.st_ino)
        if self._identity != identity:  # the first scan, or another directory under this name
            self._identity, self._listed, hints = identity, None, None
        if self._changed is None or self._changed[0] != times:
            self._changed = times, now
        self._pending |= self._check_hinted(descriptor, hints or ())
        if hints is None or (sweep and not self._is_listing_slow(now, is_awaited=bool(hints))):
            self._list(descriptor, times, self._changed[1], now)
        pending, self._pending = self._pending, set()
        return pending

    def names(self, group: FileGroup) -> tuple[str, ...]:
        """Return the names of a group, as of the last scan."""
        return self._members.get(group, ())

    def note(self, names: Collection[str], listing: Listing) -> None:
        """Ask for a new listing if some of a group's `names` were missing when they were read into `listing`."""
        if len(listing.files) < len(names) and len(listing.escaping) + len(listing.folders) == 0:
            self._listed = None  # a missing file may come back unchanged, and only a listing shows that

    def groups(self) -> Collection[FileGroup]:
        """Return all groups."""
        return self._members.keys()

    def to_compare(self, now: float) -> Iterator[FileGroup]:
        """Yield the groups whose files are to be compared in this sweep."""
        seconds = min(max(0.0, now - self._compared_at), self.full_sweep_seconds)
        self._compared_at = now
        left = max(_FILES_PER_SWEEP, len(self._inodes) * seconds / self.full_sweep_seconds)
        if not self._uncompared:
            self._uncompared = list(self._members)
        while self._uncompared and left > 0:
            group = self._uncompared.pop()
            left -= len(self._members.get(group, ()))
            yield group

    def _list(self, descriptor: int, times: Times, since: float, now: float) -> None:
        """List the directory if that is due, and note the groups whose names changed.

        `since`: the time at which the directory was first seen with these `times`.
        """
        if self._listed is not None:
            listed, at, _ = self._listed
            if listed == times and at >= since + _COARSE_SECONDS and now < at + self.full_sweep_seconds:
                return
        begin, self._listed = self.clock.now(), None
        if self._read_names(descriptor):
            self._listed = times, now, self.clock.now() - begin

    def _is_listing_slow(self, now: float, *, is_awaited: bool) -> bool:
        """Return whether the directory should be listed later, because the last listing took long.

        `is_awaited`: events reported changes, which should not wait for a listing, so it is postponed for longer.
        """
        share = 2 * _LISTING_SHARE if is_awaited else _LISTING_SHARE
        return self._listed is not None and now < self._listed[1] + share * self._listed[2]

    def _read_names(self, descriptor: int) -> bool:
        """List the directory and note the groups whose names changed. Raises OSError.

        Return whether the listing is whole: whether the filesystem distinguished folders from files for all names.
        """
        seen, is_whole = list[str](), True
        inodes, group_of = self._inodes, self.group_of
        with os.scandir(descriptor) as entries:
            for entry in entries:
                name, inode = entry.name, entry.inode()
                if inodes.get(name) == inode:
                    seen.append(name)
                    continue
                group: FileGroup | None = group_of(name)
                try:
                    if entry.is_dir(follow_symlinks=False):
                        group = _folder_group(name)
                except OSError:  # some filesystems do not list which names are folders: then each name needs a `stat`
                    is_whole = False
                    seen.append(name)
                    continue
                if group is not None:
                    self._pending |= self._add(name, inode, group)
                    seen.append(name)
        if len(seen) < len(inodes) or not is_whole:
            for name in inodes.keys() - set(seen):
                self._pending |= self._remove(name)
        return is_whole

    def _check_hinted(self, descriptor: int, names: Iterable[str]) -> set[FileGroup]:
        """Call `stat` for the names that file events reported, and return the groups that may have changed."""
        changed = set[FileGroup]()
        for name in names:
            try:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except OSError as error:
                if meaning(Entry.CHECKPOINT, error, again=True) is Meaning.GONE:
                    changed |= self._remove(name)
                else:  # the name has no `stat` now: reading its group reports the reason
                    self._listed = None
                    changed |= self._groups_with(name)
                continue
            group: FileGroup | None = _folder_group(name) if stat.S_ISDIR(status.st_mode) else self.group_of(name)
            if group is not None:
                changed |= self._add(name, status.st_ino, group)
        return changed

    def _add(self, name: str, inode: int, group: FileGroup) -> set[FileGroup]:
        """Add a name to its group, and return the groups that this changed."""
        changed = {group}
        members = self._members.get(group, ())
        if name not in members:
            if name in self._inodes:
                changed |= self._remove(name)  # a folder where a file was, or the other way round
            self._members[group] = (*members, name)
        self._inodes[name] = inode
        return changed

    def _remove(self, name: str) -> set[FileGroup]:
        """Forget a name; return the groups that it belonged to."""
        if self._inodes.pop(name, None) is None:
            return set()
        groups = self._groups_with(name)
        for group in groups:
            left = tuple(member for member in self._members[group] if member != name)
            if left:
                self._members[group] = left
            else:
                del self._members[group]
        return groups

    def _groups_with(self, name: str) -> set[FileGroup]:
        """Return the indexed groups that a name may belong to, as a folder or as a file."""
        return {group for group in (name, self.group_of(name)) if group is not None and group in self._members}


def _folder_group(name: str) -> str | None:
    """Return the group of a folder, which is its name; None if the name is a temporary one."""
    return None if is_temporary(name, folder=True) else name


class FileComparison:
    """Compare the files of the groups in one directory. A group whose comparison hangs is left out until it ends.

    `opened` opens the directory and returns its descriptor. `below`: the directory's path from the checkpoint
    directory, which is part of the names of the calls.
    """

    def __init__(self, opened: Callable[[], AbstractContextManager[int]], below: str, calls: Calls) -> None:
        self._opened = opened
        self._below = below
        self._calls = calls
        self._hanging: dict[str, str] = {}  # by call: the group whose comparison did not come to an end
        self._hung = 0  # calls that hung so far: the next comparison needs another key

    def changed(self, groups: Mapping[str, Sequence[KnownCandidate] | None]) -> set[str]:
        """Return the groups whose files changed after they were read, or that are not finished.

        `groups`: the candidates of each group by its last reading; None if the group was not read yet.
        """
        self._hanging = {call: group for call, group in self._hanging.items() if self._hangs(call)}
        left_out = set(self._hanging.values())
        compared = {group: candidates for group, candidates in groups.items() if group not in left_out}
        changed, comparing = set[str](), ""

        def compare() -> None:
            nonlocal comparing
            with self._opened() as directory:
                for comparing, candidates in compared.items():
                    if not _is_as_read(directory, candidates):
                        changed.add(comparing)

        call = f"/compare {self._hung} {self._below}"
        try:
            self._calls(call, compare)
        except HangingError:
            self._hanging[call], self._hung = comparing, self._hung + 1
        return set(changed)  # the thread of a call that hangs may still add to the other set

    def _hangs(self, call: str) -> bool:
        """Return whether an earlier call of this name has not ended yet."""
        try:
            self._calls(call, lambda: None)
        except HangingError:
            return True
        return False


def _is_as_read(directory: int, candidates: Sequence[KnownCandidate] | None) -> bool:
    """Return whether the files of a group are unchanged since they were read; False if the group is not finished."""
    if not candidates:
        return False
    for candidate in candidates:
        if not candidate.is_over or (candidate.given_up and not candidate.format.endings):
            return False  # in a folder there may be more by now
        for file in candidate.files:
            try:
                status = os.stat(file.name, dir_fd=directory)
            except OSError:
                return False
            if file[1:] != (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns):
                return False
    return True
