"""Which checkpoints there are: in the watched directory, and in the pins that hold them against deletion.

Each look re-reads only what changed. It never waits, writes or imports a framework; it blocks for as long as the
storage does, so the I/O thread calls it. What is complete, what is not yet and what will never be is decided here;
which checkpoint is wanted is not.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Final

from sidecar.checkpoints.files import File, Listing, list_files, read_file, sampled_digest
from sidecar.checkpoints.folder import Folder
from sidecar.checkpoints.formats import FORMATS, Candidate, Format, Inspection, family
from sidecar.checkpoints.formats.checkpoint_state import StateFile
from sidecar.checkpoints.marker import Marker
from sidecar.clock import Clock
from sidecar.errors import CheckpointError, IncompleteError, RecordError, StorageError, VanishedError
from sidecar.records import Checkpoint, Key, Settlement, loads

STEP_PATTERN: Final = r"-(\d+)$"
"""Where the step stands in a name, if the checkpoint itself holds none: `ckpt-500`."""

PIN_RECORD: Final = ".checkpoint.json"
"""What a pin holds, in its own words: still known when its content cannot be read any more."""

_MAX_RECORD_BYTES: Final = 64 * 1024

_PINS: Final = "/pins"  # among families, of which none is named with a slash


@dataclass(frozen=True, slots=True)
class Found:
    """A complete checkpoint. If it is pinned, `folder` is the pin and `checkpoint.pin` is set."""

    checkpoint: Checkpoint
    folder: Path  # absolute; holds its files now
    written_at: float  # wall seconds, by the storage's clock: the newest modification of its files
    seen_at: float  # `Clock.now()` of the look that first found it complete
    files: tuple[File, ...] = ()  # what it consists of, as this look saw it


@dataclass(frozen=True, slots=True)
class BrokenPin:
    """A pin that does not hold what it should; `certain` once that has been so for `corrupt_after_seconds`."""

    found: Found  # what it should hold
    why: str
    certain: bool


@dataclass(frozen=True, slots=True)
class Look:
    """What one look saw.

    `found` is in order of discovery, within one look by step and natural order of names. `corrupt` tells of each broken
    checkpoint once: in the look that gave it up. `waiting` has (name, reason) of what is not complete, or not yet.
    `missing`: the directory does not exist.

    `broken` are pins that cannot be read any more, and why; whether it stayed so for long enough to give them up.

    `by_key` is `found` again, `pinned` those of it that are. As long as nothing is found or lost, they are the very
    objects of the look before: who keeps them need not compare tens of thousands of checkpoints.
    """

    found: tuple[Found, ...]
    corrupt: tuple[Settlement, ...]
    waiting: tuple[tuple[str, str], ...]
    missing: bool
    by_key: Mapping[Key, Found] = field(default_factory=dict, compare=False)
    pinned: Mapping[Key, Found] = field(default_factory=dict, compare=False)
    broken: tuple["BrokenPin", ...] = ()

    def __post_init__(self) -> None:
        if len(self.by_key) != len(self.found):
            object.__setattr__(self, "by_key", {each.checkpoint.key: each for each in self.found})
            pinned = {key: each for key, each in self.by_key.items() if each.checkpoint.pin is not None}
            object.__setattr__(self, "pinned", pinned)

    def changed(self, changes: Mapping[Key, Found | None]) -> "Look":
        """The same, but for these; None: it is not found after all."""
        if not changes:
            return self
        by_key, pinned = dict(self.by_key), dict(self.pinned)
        for key, found in changes.items():
            if found is None:
                by_key.pop(key, None)
            else:
                by_key[key] = found
            if found is None or found.checkpoint.pin is None:
                pinned.pop(key, None)
            else:
                pinned[key] = found
        return replace(self, found=tuple(by_key.values()), by_key=by_key, pinned=pinned)


@dataclass(slots=True)
class _Judged:
    """What is remembered about one candidate between looks; of what was found its verdict is not kept."""

    format: Format
    name: str
    files: tuple[File, ...]
    unchanged_since: float
    verdict: Inspection | CheckpointError | None
    accepted: bool = False
    told: bool = False
    found: Found | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it while its files stay as they are."""
        return self.told or self.found is not None


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
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root.absolute()
        self._pins = pins.absolute()
        self._settle_seconds = settle_seconds
        self._corrupt_after_seconds = corrupt_after_seconds
        self._step_key = step_key
        self._step_pattern = re.compile(step_pattern)
        self._marker = None if complete_marker is None else Marker(complete_marker)
        self._formats = [format_ for name, format_ in FORMATS.items() if not formats or name in formats]
        self._clock = clock
        self._looked = looked
        self._folder = Folder(self._root, self._family, full_sweep_seconds=full_sweep_seconds, clock=clock)
        self._state = StateFile(self._root)
        self._named: frozenset[str] = frozenset()
        self._dirty: set[str] = set()  # families to look at: some are left if storage failed meanwhile
        self._judged: dict[str, tuple[_Judged, ...]] = {}  # by family, also if there is nothing to judge in it
        # Families in which time alone may change something: when at the latest, and until when each sweep looks.
        self._open: dict[str, tuple[float, float]] = {}
        self._lying: dict[Key, Found] = {}
        self._held: dict[Key, Found] = {}
        self._pinned: dict[str, tuple[tuple[int, int, int], Found]] = {}
        self._broken: dict[str, tuple[Found, str, float]] = {}  # pins that cannot be read: why, and since when
        self._affected: set[Key] = set()
        self._found: dict[Key, Found] = {}
        self._in_order: tuple[Found, ...] = ()
        self._untold: list[Settlement] = []
        self._reasons: dict[str, tuple[tuple[str, str], ...]] = {}  # by family or pin
        self._waiting: tuple[tuple[str, str], ...] | None = ()
        # By (name, digest): ordinal and time of discovery. Never forgotten: what flickers must not look new again.
        self._discovered: dict[Key, tuple[int, float]] = {}

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
        self._look_at_pins(now)  # after the directory: what is pinned and deleted meanwhile is seen in one of them
        if self._affected:
            self._merge(now)
        if self._waiting is None:
            self._waiting = tuple(chain.from_iterable(self._reasons.values()))
        corrupt, self._untold = tuple(self._untold), []
        after = now - self._corrupt_after_seconds
        broken = tuple(BrokenPin(found, why, since <= after) for found, why, since in self._broken.values())
        return Look(self._in_order, corrupt, self._waiting, missing, self._found, self._held, broken)

    # -- the checkpoint directory ----------------------------------------------------------------------------------

    def _look_at_root(self, directory: int, now: float, hints: Collection[str] | None, *, sweep: bool) -> None:
        sweep = sweep or hints is None
        dirty = self._dirty
        dirty |= self._folder.changed(directory, now, hints, sweep=sweep)
        named = self._state.read(now)
        if named is not self._named:
            dirty |= {f"{name}.index" for name in named ^ self._named} & self._open.keys()
            self._named = named
        for each in [marked for each in dirty if (marked := Marker.marked(each)) is not None]:
            dirty |= self._open.keys() if each == "" else {each, f"{each}.index"} & self._judged.keys()
        for each, (due, until) in self._open.items():
            if now >= due or (sweep and now < until):
                dirty.add(each)
        if sweep:
            turn = (each for each in self._folder.to_compare(now) if each not in dirty)
            dirty |= {each for each in turn if not self._is_as_before(directory, each)}
        for each in list(dirty):
            self._looked()
            self._look_at(directory, each, now)
            dirty.discard(each)

    def _family(self, name: str) -> str | None:
        if self._marker is not None and (marked := self._marker.family(name)) is not None:
            return marked
        return family(name)

    def _is_as_before(self, directory: int, name: str) -> bool:
        """Whether the files of a family are those that were judged; what is not finished is looked at in any case."""
        judged = self._judged.get(name)
        if not judged:
            return judged is not None and Marker.marked(name) is not None
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

    def _look_at(self, directory: int, name: str, now: float) -> None:
        """Judge what there is of one family, and note what that changes."""
        is_new = name not in self._judged
        known = {(each.format.name, each.name): each for each in self._judged.get(name, ())}
        listing = self._folder.listing(directory, name)._replace(named=self._named)
        judged, reasons, again = [], [], False
        for format_ in self._formats:
            for candidate in format_.candidates(self._root, listing):
                if candidate.leaving is not None:
                    reasons.append((candidate.name, f"{candidate.leaving} is a link out of the directory"))
                    continue
                try:
                    one = self._judge(format_, candidate, known.get((format_.name, candidate.name)), now)
                    reason = self._report(candidate, one, now)
                except VanishedError:  # deleted while it was looked at, or on NFS not there yet
                    again = True
                    continue
                except OSError as error:
                    reasons.append((candidate.name, f"cannot be read: {error.strerror}"))
                    again = True
                    continue
                judged.append(one)
                if reason is not None:
                    reasons.append((candidate.name, reason))
        self._note(name, known.values(), judged)
        self._note_reasons(name, reasons)
        if name not in self._folder.families():
            self._judged.pop(name, None)
            self._open.pop(name, None)
        elif again:
            self._open[name] = now, now
        else:
            self._note_due(name, judged, now, is_young=is_new and bool(listing.folders))

    def _judge(self, format_: Format, candidate: Candidate, known: _Judged | None, now: float) -> _Judged:
        """Inspect a candidate, unless its files are those that were inspected before."""
        if known is not None and known.files == candidate.files:
            return known
        verdict: Inspection | CheckpointError
        try:
            verdict = format_.inspect(self._root, candidate.name, step_key=self._step_key)
        except VanishedError:
            raise
        except CheckpointError as error:
            verdict = error
        if known is not None and _content(known.files) == _content(candidate.files):
            # A link was made to it, or undone.
            return replace(known, files=candidate.files, verdict=verdict, found=None)
        return _Judged(format_, candidate.name, candidate.files, now, verdict)

    def _report(self, candidate: Candidate, judged: _Judged, now: float) -> str | None:
        """Find it, give it up, or say why neither."""
        if judged.is_over:
            return None
        unchanged_seconds = now - judged.unchanged_since
        if isinstance(judged.verdict, CheckpointError):
            if unchanged_seconds < self._corrupt_after_seconds:
                return str(judged.verdict)
            self._untold.append(self._give_up(judged, judged.verdict))
            judged.told = True
            return None
        assert judged.verdict is not None
        judged.accepted = judged.accepted or candidate.committed or unchanged_seconds >= self._settle_seconds
        if not judged.accepted:
            return f"whole, but no state file says so: waits until unchanged for {self._settle_seconds:g} s"
        is_folder = not judged.format.endings
        if self._marker is not None and not self._marker.is_there(self._root, judged.name, is_folder=is_folder):
            return f"whole, but {self._marker.path(judged.name, is_folder=is_folder)} is not there (complete_marker)"
        needed = set(judged.verdict.files)
        files = tuple(file for file in candidate.files if file.name in needed)
        checkpoint = self._checkpoint(judged.format, judged.name, judged.verdict)
        judged.files = files if files == judged.files else judged.files
        judged.found, judged.verdict = Found(checkpoint, self._root, _written_at(files), now, files), None
        return None

    def _give_up(self, judged: _Judged, error: CheckpointError) -> Settlement:
        digest = sampled_digest(self._root, (file.name for file in judged.files))
        step = _step_in(judged.name, judged.format, self._step_pattern)
        return Settlement(judged.name, digest, step, "corrupt", str(error))

    def _note(self, name: str, before: Iterable[_Judged], judged: list[_Judged]) -> None:
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

    def _note_due(self, name: str, judged: list[_Judged], now: float, *, is_young: bool) -> None:
        """When to look at a family again though nobody tells of changes in it."""
        due, until = float("inf"), float("-inf")
        for each in judged:
            if not each.is_over:
                until = max(until, each.unchanged_since + self._corrupt_after_seconds)
                if isinstance(each.verdict, CheckpointError):
                    due = min(due, each.unchanged_since + self._corrupt_after_seconds)
                elif not each.accepted:
                    due = min(due, each.unchanged_since + self._settle_seconds)
        if is_young:
            until = now + self._corrupt_after_seconds  # the marker of a model comes last, and inside
        elif not judged and name in self._open:
            until = self._open[name][1]
        if due < float("inf") or now < until:
            self._open[name] = due, until
        else:
            self._open.pop(name, None)

    def _forget_root(self) -> None:
        """The directory is gone. It may come back with all that was in it: what is the same then is still complete."""
        self._folder.forget()
        self._state, self._named = StateFile(self._root), frozenset()
        self._affected |= self._lying.keys()
        self._lying.clear()
        self._dirty |= self._judged.keys()
        for name in [each for each in self._reasons if not each.startswith("/")]:
            self._note_reasons(name, ())

    # -- pins ------------------------------------------------------------------------------------------------------

    def _look_at_pins(self, now: float) -> None:
        known, self._pinned = self._pinned, {}
        broken, self._broken = self._broken, {}
        reasons = []
        for entry in self._pin_folders():
            self._looked()
            name = entry.name
            try:
                stat = entry.stat(follow_symlinks=False)
                signature = stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns
                before, found = known.get(name, (None, None))
                if found is None or before != signature:
                    found = self._read_pin(self._pins / name)
            except (FileNotFoundError, VanishedError):
                continue  # unpinned meanwhile
            except (CheckpointError, OSError) as error:
                reasons.append((name, f"unusable pin: {error}"))
                if isinstance(error, CheckpointError) and (meant := self._read_pin_record(self._pins / name)):
                    self._broken[name] = meant, str(error), broken[name][2] if name in broken else now
                continue
            self._pinned[name] = signature, found
        self._note_reasons(_PINS, reasons)
        held = {found.checkpoint.key: found for _, found in self._pinned.values()}
        changed = {key for key in held.keys() | self._held.keys() if held.get(key) is not self._held.get(key)}
        if changed:
            self._held = held
            self._affected |= changed

    def _pin_folders(self) -> list["os.DirEntry[str]"]:
        try:
            with os.scandir(self._pins) as entries:
                return [entry for entry in entries if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"cannot read the pins in {self._pins}: {error.strerror}") from error

    def _read_pin(self, folder: Path) -> Found:
        """What a pin holds; its name is a promise about its content, and the content is believed."""
        listing = list_files(folder)
        for format_ in FORMATS.values():
            for candidate in format_.candidates(folder, listing):
                inspection = format_.inspect(folder, candidate.name, step_key=self._step_key)
                checkpoint = self._checkpoint(format_, candidate.name, inspection)
                if checkpoint.folder == folder.name:
                    return self._as_pinned(checkpoint, folder, candidate.files)
        raise IncompleteError(f"{folder} does not hold the checkpoint it is named after")

    def _read_pin_record(self, folder: Path) -> Found | None:
        """What a pin should hold, as its maker noted; None if that cannot be read either."""
        try:
            meant = loads(Checkpoint, read_file(folder, PIN_RECORD, limit=_MAX_RECORD_BYTES))
        except (CheckpointError, RecordError, OSError):
            return None
        return self._as_pinned(meant, folder, ()) if meant.folder == folder.name else None

    def _as_pinned(self, checkpoint: Checkpoint, folder: Path, files: tuple[File, ...]) -> Found:
        checkpoint = replace(checkpoint, pin=f"{self._pins.name}/{folder.name}")
        _, seen_at = self._discovered.get(checkpoint.key, (0, self._clock.now()))
        return Found(checkpoint, folder, _written_at(files), seen_at, files)

    # -- both ------------------------------------------------------------------------------------------------------

    def _checkpoint(self, format_: Format, name: str, inspection: Inspection) -> Checkpoint:
        step = _step_in(name, format_, self._step_pattern) if inspection.step is None else inspection.step
        return Checkpoint(name, inspection.digest, step, format_.name)

    def _merge(self, now: float) -> None:
        """Put what changed in its place in the order of discovery; what is pinned is found in its pin."""
        found, new, is_back = dict(self._found), list[tuple[Key, Found]](), False
        for key in self._affected:
            item = self._held.get(key) or self._lying.get(key)
            if item is None:
                found.pop(key, None)
            elif key in found:
                found[key] = self._as_discovered(item)
            else:
                new.append((key, item))
        for key, item in sorted(new, key=lambda pair: _by_step_and_name(pair[1])):
            is_back |= key in self._discovered
            self._discovered.setdefault(key, (len(self._discovered), now))
            found[key] = self._as_discovered(item)
        if is_back:
            found = dict(sorted(found.items(), key=lambda pair: self._discovered[pair[0]][0]))
        self._affected.clear()
        self._found, self._in_order = found, tuple(found.values())

    def _as_discovered(self, item: Found) -> Found:
        seen_at = self._discovered[item.checkpoint.key][1]
        return item if item.seen_at == seen_at else replace(item, seen_at=seen_at)


def restore_path(checkpoint: Found | Checkpoint, folder: Path) -> str:
    """The path that a worker restores from, `folder` being where the files are on that worker's node."""
    record = checkpoint.checkpoint if isinstance(checkpoint, Found) else checkpoint
    return str(folder / PurePath(record.name).name)


def verify(folder: Path, name: str, format_name: str = "tf_object") -> str:
    """The digest of the checkpoint `name` as it lies in `folder` now.

    Raises:
        VanishedError, IncompleteError, CorruptError: as `Format.inspect`.
        StorageError: it cannot be read, or its format is unknown to this version.
    """
    if format_name not in FORMATS:
        raise StorageError(
            f"{name} is of the format {format_name!r}; known are {', '.join(FORMATS)}: update this daemon"
        )
    try:
        return FORMATS[format_name].inspect(folder, PurePath(name).name).digest
    except OSError as error:
        raise StorageError(f"cannot read {folder / name}: {error.strerror}") from error


def check(path: Path, format_name: str) -> None:
    """Compare all checksums of the checkpoint at a path.

    Raises:
        ChecksumError: one does not match.
        VanishedError, IncompleteError, CorruptError: as `Format.inspect`.
        StorageError: it cannot be read.
    """
    try:
        FORMATS[format_name].check(path.parent, path.name)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error


def _step_in(name: str, format_: Format, pattern: re.Pattern[str]) -> int | None:
    """What the user's pattern finds in the name without the format's suffix, or else in all of it."""
    suffix = next((suffix for suffix in format_.suffixes if name.endswith(suffix)), "")
    match = pattern.search(name.removesuffix(suffix)) or pattern.search(name)
    try:
        return int(match[1]) if match else None
    except (IndexError, TypeError, ValueError):  # the user's pattern: no group, one that took no part, no number
        return None


def _content(files: Iterable[File]) -> list[tuple[str, int, int]]:
    return [file.content for file in files]


def _written_at(files: Iterable[File]) -> float:
    return max((file.mtime_ns for file in files), default=0) / 1e9


def _by_step_and_name(found: Found) -> tuple[bool, int, list[str | int]]:
    step = found.checkpoint.step
    return step is None, step or 0, list(_natural(found.checkpoint.name))


def _natural(name: str) -> Iterator[str | int]:
    """`ckpt-10` after `ckpt-9`: text and numbers alternate, so two names compare without a type error."""
    for index, part in enumerate(re.split(r"([0-9]+)", name)):
        yield int(part) if index % 2 else part


def inspect_one(path: Path, *, step_key: str | None = None, step_pattern: str = STEP_PATTERN) -> Checkpoint:
    """The checkpoint at a path that somebody named, whether it is in a watched directory or not.

    Raises:
        VanishedError: there is none; the message lists those that are there.
        IncompleteError, CorruptError: as `Format.inspect`.
        StorageError: it cannot be read.
    """
    folder, name = path.parent, path.name
    try:
        for format_ in FORMATS.values():
            try:
                inspection = format_.inspect(folder, name, step_key=step_key)
            except VanishedError:
                continue  # there is none of this format
            pattern = re.compile(step_pattern)
            step = inspection.step if inspection.step is not None else _step_in(name, format_, pattern)
            return Checkpoint(name, inspection.digest, step, format_.name)
        listing = list_files(folder) if folder.is_dir() else Listing({})
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    there = sorted({each.name for format_ in FORMATS.values() for each in format_.candidates(folder, listing)})
    raise VanishedError(f"there is no checkpoint {name} in {folder}; found: {', '.join(there[:10]) or 'none'}")
