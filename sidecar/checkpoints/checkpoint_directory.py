"""Hold the checkpoints in one directory, and read only changed files again. `subfolders` holds those of sub-folders.

Each scan has four steps: `DirectoryIndex` and `FileComparison` find the groups of files that changed, `_GroupReadings`
reads these groups with a `FileGroupReader`, and `CheckpointDirectory` replaces the candidates of these groups. A group
whose candidates wait for a time is read again when that time has come (`_Due`).

This module neither waits nor writes. Reading blocks for as long as the storage does, so `calls` makes such calls.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from sidecar.checkpoints.candidate_decision import KnownCandidate
from sidecar.checkpoints.checkpoint_glob import NOT_ENTERED
from sidecar.checkpoints.directory_index import DirectoryIndex, FileComparison
from sidecar.checkpoints.file_group import MarkerGroup, group_of
from sidecar.checkpoints.file_group_reader import FileGroupReader, FileGroupReading
from sidecar.checkpoints.formats.checkpoint_state import StateFile
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.checkpoints.work_budget import TakesLongerError, WorkBudget
from sidecar.errors import CheckpointError
from sidecar.protocol.records import Settlement
from sidecar.system.bounded_calls import Calls, HangingError
from sidecar.system.clock import Clock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Due:
    """Hold the times at which a group is read again without any change: once at `at`, and in each sweep until `until`.

    Time alone may make its files complete or corrupt.
    """

    at: float
    until: float


_NEVER: Final = _Due(float("inf"), float("-inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadArguments:
    """Hold what is known of a group before it is read: the arguments of `FileGroupReader.read`."""

    group: str
    names: Iterable[str]
    named: Container[str]
    before: Sequence[KnownCandidate]
    now: float


@dataclass(slots=True, kw_only=True)
class _GroupReadings:
    """Read groups, so that no group waits for another one."""

    brief: FileGroupReader  # reads within a brief budget of work
    thorough: FileGroupReader  # reads within the whole budget
    open: Callable[[], AbstractContextManager[int]]  # opens the directory
    calls: Calls  # makes calls that may hang
    longer: Calls  # makes those calls that take long, one at a time and without waiting
    # The groups that wait for their turn to be read at length, in this order
    long: dict[str, None] = field(default_factory=dict)
    _late: set[str] = field(default_factory=set)  # groups whose reading did not come to an end in the last scan

    def read(self, arguments: _ReadArguments) -> FileGroupReading:
        """Read a group briefly. Return a reading that retains the known candidates if the storage hangs.

        Return such a reading for a group that takes longer, too. `read_at_length` reads that group in its turn.
        """
        try:
            reading = self.calls(self.brief.decider.named(arguments.group), partial(self._read, self.brief, arguments))
        except TakesLongerError:
            self.long[arguments.group] = None
            return self.brief.postponed(arguments.group, arguments.before)
        except HangingError as error:
            self._late.add(arguments.group)
            return self.brief.unread(arguments.group, arguments.before, error)
        if arguments.group in self._late:  # the reading may be outdated
            self._late.discard(arguments.group)
            reading.again = True
        return reading

    def read_at_length(self, arguments: _ReadArguments) -> FileGroupReading | None:
        """Read a group within the whole budget; return None as long as that goes on, or another one is being read."""
        try:
            reading = self.longer(
                self.thorough.decider.named(arguments.group), partial(self._read, self.thorough, arguments)
            )
        except HangingError:
            return None
        except OSError as error:
            reading = self.thorough.unread(arguments.group, arguments.before, error)
        reading.again = True  # the files may have changed meanwhile
        del self.long[arguments.group]
        return reading

    def _read(self, reader: FileGroupReader, arguments: _ReadArguments) -> FileGroupReading:
        with self.open() as directory:
            return reader.read(
                directory, arguments.group, arguments.names, arguments.named, arguments.before, arguments.now
            )


class CheckpointDirectory:
    """Hold the candidates in the checkpoint directory, or in one of its sub-folders, as of the last scan.

    `reader` decides which checkpoints and sub-folders count. `give_up` is called with each candidate that is given up
    as corrupt. `calls`, `longer`, `rest` and `progress` are those of `Catalog`.
    """

    def __init__(
        self,
        reader: FileGroupReader,
        give_up: Callable[[Settlement], None],
        *,
        clock: Clock,
        calls: Calls,
        longer: Calls,
        rest: Callable[[], object],
        progress: Callable[[], None],
    ) -> None:
        self._decider = reader.decider
        self._give_up = give_up
        self._calls = calls
        self._progress = progress
        self._index = DirectoryIndex(
            root=reader.top,
            group_of=partial(group_of, marker=self._decider.rules.marker, formats=self._decider.rules.looked_for),
            below=self._decider.below,
            full_sweep_seconds=self._decider.rules.full_sweep_seconds,
            clock=clock,
        )
        self._comparison = FileComparison(self._index.open, self._decider.below, calls)
        self._state_file = StateFile(self._decider.root)
        self._to_read: set[str] = set()  # groups; some are left if the storage failed meanwhile
        self._readings = _GroupReadings(
            brief=replace(reader, work=partial(WorkBudget, is_brief=True)),
            thorough=replace(reader, work=partial(WorkBudget, rest=rest)),
            open=self._index.open,
            calls=calls,
            longer=longer,
        )
        self._is_gone = False
        self._candidates: dict[str, tuple[KnownCandidate, ...]] = {}  # by group, also if it holds none
        self._reasons: dict[str, tuple[tuple[str, str], ...]] = {}  # by group: why candidates are not complete
        self._unknown: dict[str, Mapping[str, str]] = {}  # by group: why checkpoints cannot be read now
        self._due: dict[str, _Due] = {}
        self.folders: set[str] = set()  # sub-folders that are not checkpoints, but may contain some

    def scan(self, now: float, hints: Collection[str] | None, *, sweep: bool) -> bool:
        """Scan once; return whether anything was read again. Raises OSError if the directory cannot be read.

        `hints`: names in the directory that file events reported; None: there are no events, or some were missed.
        """
        sweep = sweep or hints is None

        def changed() -> set[str]:
            with self._index.open() as directory:
                groups = self._index.changed(directory, now, hints, sweep=sweep)
                named = {f"{name}.index" for name in self._state_file.read(now)} & self._due.keys()
                return named.union(*map(self._concerned_by, groups))

        # Other files do not depend on a sub-folder, which may be a mount of its own.
        self._to_read |= changed() if not self._decider.below else self._calls(f"/list {self._decider.below}", changed)
        self._is_gone = False
        self._to_read.update(group for group, due in self._due.items() if now >= due.at or (sweep and now < due.until))
        if sweep:
            self._to_read |= self._compare(self._index.to_compare(now))
        is_changed = bool(self._to_read)
        for group in sorted(self._to_read):
            if group not in self._readings.long:
                self._progress()
                self._update(group, self._readings.read(self._arguments_of(group, now)), now)
            self._to_read.discard(group)
        for group in list(self._readings.long):
            self._progress()
            reading = self._readings.read_at_length(self._arguments_of(group, now))
            if reading is None:
                break
            self._update(group, reading, now)
        return is_changed

    def is_due(self, now: float) -> bool:
        """Return whether time alone may have changed something."""
        return any(now >= due.at for due in self._due.values())

    def forget(self) -> None:
        """Note that the directory is gone. If it comes back, checkpoints with unchanged files are complete at once."""
        self._index.forget()
        self._state_file = StateFile(self._decider.root)
        self._is_gone = True
        self._reasons.clear()
        self._unknown.clear()
        self._to_read |= self._candidates.keys()
        self._readings.long.clear()
        self.folders.clear()

    def retain(self, error: OSError) -> None:
        """Retain the known candidates, because the directory cannot be read now."""
        for group, candidates in self._candidates.items():
            _set_or_remove(self._unknown, group, self._readings.brief.unread(group, candidates, error).unknown)
        self._to_read |= self._candidates.keys()

    def found(self) -> list[DiscoveredCheckpoint]:
        """Return the complete checkpoints in the directory."""
        if self._is_gone:
            return []
        candidates = chain.from_iterable(self._candidates.values())
        return [found for candidate in candidates if (found := candidate.found) is not None]

    def waiting(self) -> Iterator[tuple[str, str]]:
        """Return (name, reason) of each candidate that is not complete."""
        return chain.from_iterable(self._reasons.values())

    def left_out(self) -> Iterator[tuple[str, str]]:
        """Return (name, reason) of each checkpoint that is left out."""
        for candidate in chain.from_iterable(self._candidates.values()):
            if candidate.left_out is not None:
                yield self._decider.named(candidate.name), candidate.left_out

    def unknown(self) -> Iterator[tuple[str, str]]:
        """Return (folder name, reason) of checkpoints that were found before and cannot be read now."""
        return chain.from_iterable(reasons.items() for reasons in self._unknown.values())

    def _concerned_by(self, group: str | MarkerGroup) -> Collection[str]:
        """Return the groups to read if one changed. For a marker these are the groups of the marked checkpoints."""
        if not isinstance(group, MarkerGroup):
            return (group,)
        if group.checkpoint is None:
            return self._due.keys()
        return {group.checkpoint, f"{group.checkpoint}.index"} & self._candidates.keys()

    def _compare(self, groups: Iterable[str | MarkerGroup]) -> set[str]:
        """Return the groups whose files changed after they were read."""
        files = [group for group in groups if not isinstance(group, MarkerGroup) and group not in self._to_read]
        return self._comparison.changed({group: self._candidates.get(group) for group in files})

    def _arguments_of(self, group: str, now: float) -> _ReadArguments:
        """Return what is known of a group before it is read."""
        before, names, named = self._candidates.get(group, ()), self._index.names(group), self._state_file.named
        return _ReadArguments(group=group, names=names, named=named, before=before, now=now)

    def _update(self, group: str, reading: FileGroupReading, now: float) -> None:
        """Remember what was read of a group, and decide when to read it again."""
        is_new, names = group not in self._candidates, self._index.names(group)
        if reading.listing is not None:
            self._index.note(names, reading.listing)
            self._note_folder(group, reading)
        for settlement in reading.given_up:
            self._give_up(settlement)
        _set_or_remove(self._reasons, group, tuple(reading.reasons))
        _set_or_remove(self._unknown, group, reading.unknown)
        self._candidates[group] = tuple(reading.candidates)
        if group not in self._index.groups():
            del self._candidates[group]
            self._due.pop(group, None)
            return
        has_folders = reading.listing is not None and bool(reading.listing.folders)
        is_young = is_new and has_folders
        due = _Due(now, now) if reading.again else self._due_of(group, reading.candidates, now, is_young=is_young)
        if due == _NEVER:
            self._due.pop(group, None)
        else:
            self._due[group] = due

    def _note_folder(self, group: str, reading: FileGroupReading) -> None:
        """Note whether a group is a sub-folder that may contain checkpoints. A checkpoint is not entered."""
        assert reading.listing is not None
        is_entered = group in reading.listing.folders and group not in NOT_ENTERED and not reading.candidates
        if is_entered and self._decider.rules.glob.enters(self._decider.named(group)):
            self.folders.add(group)
        else:
            self.folders.discard(group)

    def _due_of(self, group: str, candidates: Sequence[KnownCandidate], now: float, *, is_young: bool) -> _Due:
        """Return when to read a group again even if its files do not change.

        `is_young`: the group is new and a folder, whose checkpoint may still be incomplete.
        """
        at, until = _NEVER.at, _NEVER.until
        for candidate in candidates:
            if not candidate.is_over:
                accepted_at, given_up_at = self._decider.ends(candidate)
                until = max(until, given_up_at)
                if isinstance(candidate.verdict, CheckpointError):
                    at = min([at, *(end for end in (accepted_at, given_up_at) if now < end)])
                elif not candidate.accepted:
                    at = min(at, accepted_at)
        if is_young:
            # a model's marker is written last, inside its folder
            until = now + self._decider.rules.corrupt_after_seconds
        elif not candidates and group in self._due:
            until = self._due[group].until
        return _Due(at, until) if at < _NEVER.at or now < until else _NEVER


def _set_or_remove(by_group: dict[str, T], group: str, value: T) -> None:
    """Set the value of a group, or remove it if the value is empty."""
    if value:
        by_group[group] = value
    else:
        by_group.pop(group, None)
