"""Which checkpoints there are: in the watched directory, and in the pins that hold them against deletion.

Each look re-reads only what changed. It never waits, writes or imports a framework; it blocks for as long as the
storage does, so the I/O thread calls it. What is complete, what is not yet and what will never be is decided here;
which checkpoint is wanted is not.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from sidecar.bounded_calls import Calls, HangingError, call_directly
from sidecar.checkpoints.discovery import Discovery
from sidecar.checkpoints.folder import Folder
from sidecar.checkpoints.formats import FORMATS, family
from sidecar.checkpoints.formats.checkpoint_state import StateFile
from sidecar.checkpoints.found import Found, Look
from sidecar.checkpoints.held import Held
from sidecar.checkpoints.judging import FamilyReading, Judge, Judged
from sidecar.checkpoints.marker import Marker
from sidecar.checkpoints.presence import Answer, Presence, ask
from sidecar.checkpoints.single import STEP_PATTERN
from sidecar.clock import Clock
from sidecar.errors import CheckpointError, StorageError
from sidecar.records import Key, Settlement

_PINS: Final = "/pins"  # among families, of which none is named with a slash
_MAKING: Final = "/making"  # likewise
_MADE_ELSEWHERE: Final = "a node is making a pin of it, or left one unfinished"


class Catalog:
    """The checkpoints of one directory and its pins, as this process has come to know them.

    Args:
        root: the checkpoint directory; it may not exist yet.
        pins: the folder of pins; it may not exist yet.
        settle_seconds: how long the files of a checkpoint that no state file names must stay unchanged.
        corrupt_after_seconds: how long those of a broken one must, before it is given up.
        full_sweep_seconds: by then every file was looked at again, however many there are.
        step_key: the object-graph path of the variable that holds the step; no other is then looked at.
        step_pattern: regular expression whose first group is the step in a name.
        complete_marker: a file without which nothing counts as complete; see `marker`.
        formats: which formats to look for; empty: all.
        clock: time.
        calls: makes calls that may hang, by the name of what they read.
        looked: called after each checkpoint and each pin that a look was about, since looks may take long.
    """

    def __init__(
        self,
        root: Path,
        pins: Path,
        *,
        settle_seconds: float,
        corrupt_after_seconds: float = 60.0,
        full_sweep_seconds: float = 300.0,
        step_key: str | None = None,
        step_pattern: str = STEP_PATTERN,
        complete_marker: str | None = None,
        formats: Collection[str] = (),
        clock: Clock,
        calls: Calls = call_directly,
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root.absolute()
        self._pins = pins.absolute()
        self._marker = None if complete_marker is None else Marker(complete_marker)
        self._judge = Judge(
            self._root,
            settle_seconds,
            corrupt_after_seconds,
            step_key,
            re.compile(step_pattern),
            self._marker,
            [format_ for name, format_ in FORMATS.items() if not formats or name in formats],
            clock,
        )
        self._clock = clock
        self._calls = calls
        self._late: set[str] = set()  # families whose reading did not come to an end in the last look
        self._stuck: dict[str, str] = {}  # families of which comparing did not come to an end, by the call
        self._comparisons = 0
        self._looked = looked
        self._folder = Folder(self._root, self._family, full_sweep_seconds=full_sweep_seconds, clock=clock)
        self._state = StateFile(self._root)
        self._dirty: set[str] = set()  # families to look at: some are left if storage failed meanwhile
        self._judged: dict[str, tuple[Judged, ...]] = {}  # by family, also if there is nothing to judge in it
        # Families in which time alone may change something: when at the latest, and until when each sweep looks.
        self._open: dict[str, tuple[float, float]] = {}
        self._lying: dict[Key, Found] = {}
        self._held = Held(
            pins,
            corrupt_after_seconds=corrupt_after_seconds,
            step_key=step_key,
            step_pattern=self._judge.step_pattern,
            calls=calls,
            looked=looked,
        )
        self._affected: set[Key] = set()
        self._found: dict[Key, Found] = {}
        self._in_order: tuple[Found, ...] = ()
        self._untold: list[Settlement] = []
        self._unknown: dict[str, Mapping[str, str]] = {}  # by family: checkpoints that cannot be read now, and why
        self._reasons: dict[str, tuple[tuple[str, str], ...]] = {}  # by family or pin
        self._waiting: tuple[tuple[str, str], ...] | None = ()
        self._discovery = Discovery()

    def look(self, hints: Collection[str] | None = None, *, sweep: bool = True) -> Look:
        """Look once; raises `StorageError` if a folder exists and cannot be read.

        `hints`: names in the checkpoint directory that file events told of since the last look; None: there are no
        events, or not of all changes. `sweep`: look beyond them, too.
        """
        now = self._clock.now()
        missing = False
        try:
            with self._folder.open() as directory:
                self._look_at_root(directory, now, hints, sweep=sweep)
        except FileNotFoundError:
            missing = True
            self._forget_root()
        except OSError as error:
            raise StorageError(f"cannot read the checkpoint directory {self._root}: {error.strerror}") from error
        # After the directory: what is pinned and deleted meanwhile is seen in one of them.
        self._affected |= self._held.look(now)
        self._note_reasons(_PINS, self._held.reasons)
        before, news = self._found, frozenset(self._affected)
        if news:
            self._merge(now)
        making = self._unseen()
        self._note_reasons(_MAKING, [(f"@{digest}", _MADE_ELSEWHERE) for digest in sorted(making)])
        if self._waiting is None:
            self._waiting = tuple(chain.from_iterable(self._reasons.values()))
        corrupt, self._untold = tuple(self._untold), []
        held = self._held
        return Look(
            self._in_order,
            corrupt,
            self._waiting,
            missing,
            self._found,
            held.found,
            held.broken,
            before,
            news,
            self._discovery.order,
            making=making,
            unknown=self._all_unknown(),
            unclaimed=held.unclaimed,
        )

    def ask(self, found: Found) -> Answer:
        """Ask whether the files of a checkpoint are there, by their names."""
        try:
            return self._calls(f"/ask {found.checkpoint.folder}", lambda: ask(found, self._root, self._pins))
        except HangingError as error:
            return Answer(Presence.UNKNOWN, str(error.strerror))

    # -- the checkpoint directory ----------------------------------------------------------------------------------

    def _look_at_root(self, directory: int, now: float, hints: Collection[str] | None, *, sweep: bool) -> None:
        sweep = sweep or hints is None
        dirty = self._dirty
        dirty |= self._folder.changed(directory, now, hints, sweep=sweep)
        dirty |= {f"{name}.index" for name in self._state.read(now)} & self._open.keys()
        for each in [marked for each in dirty if (marked := Marker.marked(each)) is not None]:
            dirty |= self._open.keys() if each == "" else {each, f"{each}.index"} & self._judged.keys()
        for each, (due, until) in self._open.items():
            if now >= due or (sweep and now < until):
                dirty.add(each)
        if sweep:
            dirty |= self._compare([each for each in self._folder.to_compare(now) if each not in dirty])
        for each in sorted(dirty):
            self._looked()
            self._look_at(each, now)
            dirty.discard(each)

    def _family(self, name: str) -> str | None:
        if self._marker is not None and (marked := self._marker.family(name)) is not None:
            return marked
        return family(name)

    def _compare(self, families: Sequence[str]) -> set[str]:
        """Return the families whose files are not those that were judged; one that hangs is left out from then on."""
        self._stuck = {call: family for call, family in self._stuck.items() if self._hangs(call)}
        judged = {each: self._judged.get(each) for each in families if each not in self._stuck.values()}
        changed, at = set[str](), ""

        def compare() -> None:
            nonlocal at
            with self._folder.open() as directory:
                for at, before in judged.items():
                    if not _is_as_before(directory, before, is_marked=Marker.marked(at) is not None):
                        changed.add(at)

        call = f"/compare {self._comparisons}"
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

    def _read(self, name: str, now: float) -> FamilyReading:
        """Read a family; if that does not come to an end, what was known of it still holds."""
        before, names, named = self._judged.get(name, ()), self._folder.names(name), self._state.named

        def read() -> FamilyReading:
            with self._folder.open() as directory:
                return self._judge.read(directory, name, names, named, before, now)

        try:
            reading = self._calls(name, read)
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
        self._untold += reading.given_up
        self._note(name, before, reading.judged)
        self._note_reasons(name, reading.reasons)
        self._unknown.pop(name, None)
        if reading.unknown:
            self._unknown[name] = reading.unknown
        if name not in self._folder.families():
            self._judged.pop(name, None)
            self._open.pop(name, None)
        elif reading.again:
            self._open[name] = now, now
        else:
            has_folders = reading.listing is not None and bool(reading.listing.folders)
            self._note_due(name, reading.judged, now, is_young=is_new and has_folders)

    def _note(self, name: str, before: Iterable[Judged], judged: list[Judged]) -> None:
        """Remember what was judged, and which findings that adds or takes away."""
        found = {each.found.checkpoint.key: each.found for each in judged if each.found is not None}
        for key in [each.found.checkpoint.key for each in before if each.found is not None]:
            if key not in found and self._lying.pop(key, None) is not None:
                self._affected.add(key)
        for key, each in found.items():
            if self._lying.get(key) is not each:
                self._lying[key] = each
                self._affected.add(key)
        self._judged[name] = tuple(judged)

    def _note_reasons(self, name: str, reasons: Iterable[tuple[str, str]]) -> None:
        told = tuple(reasons)
        if told != self._reasons.get(name, ()):
            self._waiting = None
            if told:
                self._reasons[name] = told
            else:
                del self._reasons[name]

    def _note_due(self, name: str, judged: list[Judged], now: float, *, is_young: bool) -> None:
        """When to look at a family again though nobody tells of changes in it."""
        due, until = float("inf"), float("-inf")
        for each in judged:
            if not each.is_over:
                until = max(until, each.unchanged_since + self._judge.corrupt_after_seconds)
                if isinstance(each.verdict, CheckpointError):
                    due = min([due, *(end for end in self._judge.ends(each) if now < end)])
                elif not each.accepted:
                    due = min(due, each.unchanged_since + self._judge.settle_seconds)
        if is_young:
            until = now + self._judge.corrupt_after_seconds  # the marker of a model comes last, and inside
        elif not judged and name in self._open:
            until = self._open[name][1]
        if due < float("inf") or now < until:
            self._open[name] = due, until
        else:
            self._open.pop(name, None)

    def _forget_root(self) -> None:
        """The directory is gone. It may come back with all that was in it: what is the same then is still complete."""
        self._folder.forget()
        self._state = StateFile(self._root)
        self._affected |= self._lying.keys()
        self._lying.clear()
        self._unknown.clear()
        self._dirty |= self._judged.keys()
        for name in [each for each in self._reasons if not each.startswith("/")]:
            self._note_reasons(name, ())

    def _all_unknown(self) -> Mapping[str, str]:
        """What cannot be read now, and is not read from a pin that can."""
        if not self._unknown:
            return self._held.unknown
        pinned = {found.checkpoint.folder for found in self._held.found.values()}
        lying = {folder: why for each in self._unknown.values() for folder, why in each.items() if folder not in pinned}
        return lying | dict(self._held.unknown)

    # -- both ------------------------------------------------------------------------------------------------------

    def _merge(self, now: float) -> None:
        """Put what changed in its place in the order of discovery; what is pinned is found in its pin."""
        found, changed = dict(self._found), dict[Key, Found]()
        for key in self._affected:
            item = self._held.found.get(key) or self._lying.get(key)
            if item is None:
                found.pop(key, None)
            else:
                changed[key] = item
        new = [item for key, item in changed.items() if key not in found]
        are_last = self._discovery.add(new, found, self._lying, now)
        order = self._discovery.order
        for key in sorted(changed, key=order.__getitem__):
            found[key] = self._as_discovered(changed[key])
        if not are_last:
            found = dict(sorted(found.items(), key=lambda pair: order[pair[0]]))
        self._affected.clear()
        self._found, self._in_order = found, tuple(found.values())

    def _unseen(self) -> frozenset[str]:
        """Pins that some node makes of what this one does not see, as training deleted it before it looked."""
        if not self._held.making:
            return self._held.making
        return self._held.making.difference(digest[:12] for _, digest in self._found)

    def _as_discovered(self, item: Found) -> Found:
        _, seen_at = self._discovery.order[item.checkpoint.key]
        return item if item.seen_at == seen_at else replace(item, seen_at=seen_at)


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
