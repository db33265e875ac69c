"""What changed in a directory of checkpoints since it was looked at last, without touching what did not.

A family is what may be one checkpoint: a sub-folder, or the files that a format says belong together. Of a hundred
thousand files that nobody writes any more, the usual look costs one `fstat` of the directory:

- names that file events told of are looked at;
- a sweep lists the directory if its times changed, for then something was created, renamed or deleted. A listing gives
  names and inodes, and what is not known, has another inode or is gone has changed;
- files rewritten under their names change neither, so each sweep compares some of them with what was seen, in turn:
  all of them if they are few, else as many as it takes to get through in `full_sweep_seconds`. At that pace the
  directory is listed in any case, should its times lie.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import Listing, is_temporary
from sidecar.clock import Clock
from sidecar.confined import open_folder
from sidecar.entry_errors import Entry, Meaning, meaning

_COARSE_SECONDS: Final = 2.0
"""Two changes within so long may leave the same times: the coarsest that filesystems keep."""

_EACH_SWEEP: Final = 256
"""So many files are compared in each sweep, so the usual directory is compared as a whole: 1 ms of work."""

_LISTING_SHARE: Final = 1000
"""While file events say what changed, listing may take the thousandth part of the time: 100,000 names take 0.1 s."""

Times = tuple[int, int]


class DirectoryIndex:
    """The names in a directory of checkpoints that may matter, by family; a family is named like its main file.

    Args:
        root: the checkpoint directory; it may not exist yet.
        below: the path of a folder in it, which is the one that is meant; no link in that path is followed.
        family: the family of a file by its name, None if it belongs to none.
        full_sweep_seconds: by then everything was looked at again.
        clock: time.
    """

    def __init__(
        self,
        root: Path,
        family: Callable[[str], str | None],
        *,
        below: str = "",
        full_sweep_seconds: float,
        clock: Clock,
    ) -> None:
        self._root = root
        self._below = below
        self._family = family
        self._full_sweep_seconds = full_sweep_seconds
        self._clock = clock
        self._inodes: dict[str, int] = {}  # by name, as listings tell them
        self._members: dict[str, tuple[str, ...]] = {}  # names by family
        self._identity: tuple[int, int] | None = None
        self._changed: tuple[Times, float] | None = None  # the directory's times, and when they were seen first
        self._listed: tuple[Times, float, float] | None = None  # the same of the last listing, and how long it took
        self._turn: list[str] = []  # families that are still to be compared in this round
        self._untold: set[str] = set()  # families that changed: they stay here if listing fails midway
        self._compared_at = float("-inf")

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """The directory, opened: on NFS that is what makes its times be asked for anew. Raises OSError."""
        with contextlib.ExitStack() as stack:
            opened = stack.enter_context(open_folder(self._root))
            if self._below:
                opened = stack.enter_context(opened.folder(self._below))
            yield opened.descriptor

    def forget(self) -> None:
        """Start anew, as after the directory was gone."""
        self._inodes.clear()
        self._members.clear()
        self._identity = self._changed = self._listed = None
        self._turn = []

    def changed(self, descriptor: int, now: float, hints: Collection[str] | None, *, sweep: bool) -> set[str]:
        """Families of which names came, went or were replaced.

        `hints` are names that file events told of; None: there are no events, so this is for the listing to find out.
        """
        found = os.fstat(descriptor)
        times, identity = (found.st_mtime_ns, found.st_ctime_ns), (found.st_dev, found.st_ino)
        if self._identity != identity:  # the first look, or another directory under this name
            self._identity, self._listed, hints = identity, None, None
        if self._changed is None or self._changed[0] != times:
            self._changed = times, now
        self._untold |= self._hinted(descriptor, hints or ())
        if hints is None or (sweep and not self._is_listing_slow(now, is_awaited=bool(hints))):
            self._list(descriptor, times, self._changed[1], now)
        untold, self._untold = self._untold, set()
        return untold

    def names(self, family: str) -> tuple[str, ...]:
        """The names of a family, as they are known."""
        return self._members.get(family, ())

    def note(self, names: Collection[str], listing: Listing) -> None:
        """Remember whether any of a family's names was missing when they were asked for."""
        if len(listing.files) < len(names) and len(listing.escaping) + len(listing.folders) == 0:
            self._listed = None  # what is gone may come back as it was, and only a listing would tell

    def families(self) -> Collection[str]:
        """All of them."""
        return self._members.keys()

    def to_compare(self, now: float) -> Iterator[str]:
        """The families whose turn it is in this sweep."""
        seconds = min(max(0.0, now - self._compared_at), self._full_sweep_seconds)
        self._compared_at = now
        left = max(_EACH_SWEEP, len(self._inodes) * seconds / self._full_sweep_seconds)
        if not self._turn:
            self._turn = list(self._members)
        while self._turn and left > 0:
            family = self._turn.pop()
            left -= len(self._members.get(family, ()))
            yield family

    def _list(self, descriptor: int, times: Times, since: float, now: float) -> None:
        """List, if that is due, and note the families of what changed."""
        if self._listed is not None:
            listed, at, _ = self._listed
            if listed == times and at >= since + _COARSE_SECONDS and now < at + self._full_sweep_seconds:
                return
        begin, self._listed = self._clock.now(), None
        if self._listed_now(descriptor):
            self._listed = times, now, self._clock.now() - begin

    def _is_listing_slow(self, now: float, *, is_awaited: bool) -> bool:
        """Whether to list only later; for longer if events told of something, which should not wait for a listing."""
        share = 2 * _LISTING_SHARE if is_awaited else _LISTING_SHARE
        return self._listed is not None and now < self._listed[1] + share * self._listed[2]

    def _listed_now(self, descriptor: int) -> bool:
        """List, and note the families of what changed; returns whether all that is there could be told apart."""
        seen, is_whole = list[str](), True
        known, family_of = self._inodes, self._family
        with os.scandir(descriptor) as entries:
            for entry in entries:
                name, inode = entry.name, entry.inode()
                if known.get(name) == inode:
                    seen.append(name)
                    continue
                family = family_of(name)
                try:
                    if entry.is_dir(follow_symlinks=False):
                        family = _folder_family(name)
                except OSError:  # some filesystems do not list what is a folder: then it is asked for each name
                    is_whole = False
                    seen.append(name)
                    continue
                if family is not None:
                    self._untold |= self._add(name, inode, family)
                    seen.append(name)
        if len(seen) < len(known) or not is_whole:
            for name in known.keys() - set(seen):
                self._untold |= self._remove(name)
        return is_whole

    def _hinted(self, descriptor: int, names: Iterable[str]) -> set[str]:
        found = set[str]()
        for name in names:
            try:
                there = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except OSError as error:
                if meaning(Entry.CHECKPOINT, error, again=True) is Meaning.GONE:
                    found |= self._remove(name)
                else:  # it cannot be asked for now: whoever looks at its family says why
                    self._listed = None
                    found |= {each for each in (name, self._family(name)) if each is not None and each in self._members}
                continue
            family = _folder_family(name) if stat.S_ISDIR(there.st_mode) else self._family(name)
            if family is not None:
                found |= self._add(name, there.st_ino, family)
        return found

    def _add(self, name: str, inode: int, family: str) -> set[str]:
        """Note a name; the families that changed by that."""
        found = {family}
        members = self._members.get(family, ())
        if name not in members:
            if name in self._inodes:
                found |= self._remove(name)  # a folder where a file was, or the other way round
            self._members[family] = (*members, name)
        self._inodes[name] = inode
        return found

    def _remove(self, name: str) -> set[str]:
        """Forget a name; the families that it was of."""
        if self._inodes.pop(name, None) is None:
            return set()
        families = {each for each in (name, self._family(name)) if each is not None and each in self._members}
        for family in families:
            left = tuple(each for each in self._members[family] if each != name)
            if left:
                self._members[family] = left
            else:
                del self._members[family]
        return families


def _folder_family(name: str) -> str | None:
    return None if is_temporary(name, folder=True) else name
