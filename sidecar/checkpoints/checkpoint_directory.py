"""The checkpoints in one directory, re-read only where something changed; sub-folders are `subfolders`' matter.

Nothing here waits or writes; it blocks for as long as the storage does, so calls that may hang are made by `calls`.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from sidecar.bounded_calls import Calls, HangingError
from sidecar.checkpoints.checkpoint_glob import NOT_ENTERED
from sidecar.checkpoints.complete_marker import CompleteMarker
from sidecar.checkpoints.completeness import CompletenessJudge, FileGroupReading, Judged
from sidecar.checkpoints.directory_index import DirectoryIndex
from sidecar.checkpoints.formats import family
from sidecar.checkpoints.formats.checkpoint_state import StateFile
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.clock import Clock
from sidecar.errors import CheckpointError
from sidecar.records import Key, Settlement


@dataclass(slots=True)
class Findings:
    """What the directories of one catalog hold. Families are named by their path from the checkpoint directory."""

    lying: dict[Key, DiscoveredCheckpoint] = field(default_factory=dict)
    affected: set[Key] = field(default_factory=set)  # what came, went or changed since somebody emptied this
    untold: list[Settlement] = field(default_factory=list)  # what was given up, likewise
    unknown: dict[str, Mapping[str, str]] = field(default_factory=dict)  # by family: what cannot be read now, and why
    _reasons: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)  # by family
    _waiting: tuple[tuple[str, str], ...] | None = ()

    @property
    def waiting(self) -> tuple[tuple[str, str], ...]:
        """What is not complete, or not yet, and why: the same object as long as nothing of it changes."""
        if self._waiting is None:
            self._waiting = tuple(chain.from_iterable(self._reasons.values()))
        return self._waiting

    def note_reasons(self, family: str, reasons: Iterable[tuple[str, str]]) -> None:
        """Remember what is said of a family now."""
        told = tuple(reasons)
        if told != self._reasons.get(family, ()):
            self._waiting = None
            if told:
                self._reasons[family] = told
            else:
                del self._reasons[family]

    def put(self, key: Key, found: DiscoveredCheckpoint) -> None:
        """Remember a checkpoint that lies there."""
        if self.lying.get(key) is not found:
            self.lying[key] = found
            self.affected.add(key)

    def take(self, key: Key) -> None:
        """Forget a checkpoint that is not there any more."""
        if self.lying.pop(key, None) is not None:
            self.affected.add(key)


class CheckpointDirectory:
    """What lies in the checkpoint directory, or in one of its sub-folders, as this process has come to know it.

    Args:
        judge: the rules, which directory it is, and which checkpoints and sub-folders count.
        findings: where what is found is noted.
        full_sweep_seconds: by then every file was looked at again, however many there are.
        clock: time.
        calls: makes calls that may hang, by the name of what they read.
        looked: called after each family that a look was about.
    """

    def __init__(
        self,
        judge: CompletenessJudge,
        findings: Findings,
        *,
        full_sweep_seconds: float,
        clock: Clock,
        calls: Calls,
        looked: Callable[[], None],
    ) -> None:
        self._judge = judge
        self._findings = findings
        self._calls = calls
        self._looked = looked
        self._late: set[str] = set()  # families whose reading did not come to an end in the last look
        self._stuck: dict[str, str] = {}  # families of which comparing did not come to an end, by the call
        self._comparisons = 0
        self._folder = DirectoryIndex(
            judge.top, self._family, below=judge.below, full_sweep_seconds=full_sweep_seconds, clock=clock
        )
        self._state = StateFile(judge.root)
        self._dirty: set[str] = set()  # families to look at: some are left if storage failed meanwhile
        self._judged: dict[str, tuple[Judged, ...]] = {}  # by family, also if there is nothing to judge in it
        # Families in which time alone may change something: when at the latest, and until when each sweep looks.
        self._open: dict[str, tuple[float, float]] = {}
        self.folders: set[str] = set()  # sub-folders that are no checkpoint, and in which some may lie

    def look(self, now: float, hints: Collection[str] | None, *, sweep: bool) -> bool:
        """Look once; returns whether anything was read again. Raises OSError if the directory cannot be read.

        `hints`: names in it that file events told of; None: there are no events, or not of all changes.
        """
        sweep = sweep or hints is None
        dirty = self._dirty

        def changed() -> set[str]:
            with self._folder.open() as directory:
                found = self._folder.changed(directory, now, hints, sweep=sweep)
                return found | ({f"{name}.index" for name in self._state.read(now)} & self._open.keys())

        # Other files do not depend on a sub-folder, which may be a mount of its own.
        dirty |= changed() if not self._judge.below else self._calls(f"/list {self._judge.below}", changed)
        for each in [marked for each in dirty if (marked := CompleteMarker.marked(each)) is not None]:
            dirty |= self._open.keys() if each == "" else {each, f"{each}.index"} & self._judged.keys()
        for each, (due, until) in self._open.items():
            if now >= due or (sweep and now < until):
                dirty.add(each)
        if sweep:
            dirty |= self._compare([each for each in self._folder.to_compare(now) if each not in dirty])
        is_changed = bool(dirty)
        for each in sorted(dirty):
            self._looked()
            self._look_at(each, now)
            dirty.discard(each)
        return is_changed

    def is_due(self, now: float) -> bool:
        """Return whether time alone may have changed something."""
        return any(now >= due for due, _ in self._open.values())

    def forget(self) -> None:
        """Note that it is gone. It may come back with all that was in it: what is the same then is still complete."""
        self._folder.forget()
        self._state = StateFile(self._judge.root)
        for judged in self._judged.values():
            self._take(judged)
        for name in self._judged:
            self._findings.unknown.pop(self._judge.named(name), None)
            self._findings.note_reasons(self._judge.named(name), ())
        self._dirty |= self._judged.keys()
        self.folders.clear()

    def keep(self, error: OSError) -> None:
        """Keep what was known of it, as it cannot be read now."""
        for name, judged in self._judged.items():
            if unknown := self._judge.unread(name, judged, error).unknown:
                self._findings.unknown[self._judge.named(name)] = unknown
        self._dirty |= self._judged.keys()

    def _family(self, name: str) -> str | None:
        marker = self._judge.marker
        marked = None if marker is None else marker.family(name)
        return family(name, self._judge.formats) if marked is None else marked

    def _compare(self, families: Sequence[str]) -> set[str]:
        """Return the families whose files are not those that were judged; one that hangs is left out from then on."""
        self._stuck = {call: family for call, family in self._stuck.items() if self._hangs(call)}
        judged = {each: self._judged.get(each) for each in families if each not in self._stuck.values()}
        changed, at = set[str](), ""

        def compare() -> None:
            nonlocal at
            with self._folder.open() as directory:
                for at, before in judged.items():
                    if not _is_as_before(directory, before, is_marked=CompleteMarker.marked(at) is not None):
                        changed.add(at)

        call = f"/compare {self._judge.named(str(self._comparisons))}"
        try:
            self._calls(call, compare)
        except HangingError:
            self._stuck[call], self._comparisons = at, self._comparisons + 1
        return set(changed)

    def _hangs(self, call: str) -> bool:
        try:
            self._calls(call, lambda: None)
        except HangingError:
            return True
        return False

    def _read(self, name: str, now: float) -> FileGroupReading:
        """Read a family; if that does not come to an end, what was known of it still holds."""
        before, names, named = self._judged.get(name, ()), self._folder.names(name), self._state.named

        def read() -> FileGroupReading:
            with self._folder.open() as directory:
                return self._judge.read(directory, name, names, named, before, now)

        try:
            reading = self._calls(self._judge.named(name), read)
        except HangingError as error:
            self._late.add(name)
            return self._judge.unread(name, before, error)
        if name in self._late:  # what it tells may be old
            self._late.discard(name)
            reading.again = True
        return reading

    def _look_at(self, name: str, now: float) -> None:
        """Judge what there is of one family, and note what that changes."""
        is_new, before = name not in self._judged, self._judged.get(name, ())
        names = self._folder.names(name)
        reading = self._read(name, now)
        if reading.listing is not None:
            self._folder.note(names, reading.listing)
            self._note_folder(name, reading)
        self._findings.untold += reading.given_up
        self._note(name, before, reading.judged)
        place = self._judge.named(name)
        self._findings.note_reasons(place, reading.reasons)
        self._findings.unknown.pop(place, None)
        if reading.unknown:
            self._findings.unknown[place] = reading.unknown
        if name not in self._folder.families():
            self._judged.pop(name, None)
            self._open.pop(name, None)
        elif reading.again:
            self._open[name] = now, now
        else:
            has_folders = reading.listing is not None and bool(reading.listing.folders)
            self._note_due(name, reading.judged, now, is_young=is_new and has_folders)

    def _note_folder(self, name: str, reading: FileGroupReading) -> None:
        """Remember whether a family is a folder in which checkpoints may lie; a checkpoint is not entered."""
        assert reading.listing is not None
        is_entered = name in reading.listing.folders and name not in NOT_ENTERED and not reading.judged
        if is_entered and self._judge.glob.enters(self._judge.named(name)):
            self.folders.add(name)
        else:
            self.folders.discard(name)

    def _note(self, name: str, before: Iterable[Judged], judged: list[Judged]) -> None:
        """Remember what was judged, and which findings that adds or takes away."""
        found = {each.found.checkpoint.key: each.found for each in judged if each.found is not None}
        self._take(each for each in before if each.found is not None and each.found.checkpoint.key not in found)
        for key, each in found.items():
            self._findings.put(key, each)
        self._judged[name] = tuple(judged)

    def _take(self, judged: Iterable[Judged]) -> None:
        for each in judged:
            if each.found is not None:
                self._findings.take(each.found.checkpoint.key)

    def _note_due(self, name: str, judged: list[Judged], now: float, *, is_young: bool) -> None:
        """When to look at a family again though nobody tells of changes in it."""
        due, until = float("inf"), float("-inf")
        for each in judged:
            if not each.is_over:
                until = max(until, each.unchanged_since + self._judge.corrupt_after_seconds)
                if isinstance(each.verdict, CheckpointError):
                    due = min([due, *(end for end in self._judge.ends(each) if now < end)])
                elif not each.accepted:
                    due = min(due, each.unchanged_since + self._judge.quiet_seconds)
        if is_young:
            until = now + self._judge.corrupt_after_seconds  # the marker of a model comes last, and inside
        elif not judged and name in self._open:
            until = self._open[name][1]
        if due < float("inf") or now < until:
            self._open[name] = due, until
        else:
            self._open.pop(name, None)


def _is_as_before(directory: int, judged: Sequence[Judged] | None, *, is_marked: bool) -> bool:
    """Whether the files of a family are those that were judged; what is not finished is looked at in any case."""
    if not judged:
        return judged is not None and is_marked
    for each in judged:
        if not each.is_over or (each.told and not each.format.endings):
            return False  # in a folder there may be more by now
        for file in each.files:
            try:
                there = os.stat(file.name, dir_fd=directory)
            except OSError:
                return False
            if file[1:] != (there.st_size, there.st_mtime_ns, there.st_ino, there.st_ctime_ns):
                return False
    return True
