"""Which checkpoints there are: in the watched directory, and in the pins that hold them against deletion.

Each look lists both folders and re-reads only files that changed. It never waits, writes or imports a framework; it
blocks for as long as the storage does, so the I/O thread calls it. What is complete, what is not yet and what will
never be is decided here; which checkpoint is wanted is not.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Final

from sidecar.checkpoints.files import File, Listing, list_files, sampled_digest
from sidecar.checkpoints.formats import FORMATS, Candidate, Format, Inspection
from sidecar.clock import Clock
from sidecar.errors import CheckpointError, IncompleteError, StorageError, VanishedError
from sidecar.records import Checkpoint, Settlement

STEP_PATTERN: Final = r"-(\d+)$"
"""Where the step stands in a name, if the checkpoint itself holds none: `ckpt-500`."""


@dataclass(frozen=True, slots=True)
class Found:
    """A complete checkpoint. If it is pinned, `folder` is the pin and `checkpoint.pin` is set."""

    checkpoint: Checkpoint
    folder: Path  # absolute; holds its files now
    written_at: float  # wall seconds, by the storage's clock: the newest modification of its files
    seen_at: float  # `Clock.now()` of the look that first found it complete
    files: tuple[File, ...] = ()  # what it consists of, as this look saw it


@dataclass(frozen=True, slots=True)
class Look:
    """What one look saw.

    `found` is in order of discovery, within one look by step and natural order of names. `corrupt` tells of each broken
    checkpoint once: in the look that gave it up. `waiting` has (name, reason) of what is not complete, or not yet.
    `missing`: the directory does not exist. `unusable`: the folders of pins that nobody could read for so long that
    a broken checkpoint is given up.
    """

    found: tuple[Found, ...]
    corrupt: tuple[Settlement, ...]
    waiting: tuple[tuple[str, str], ...]
    missing: bool
    unusable: tuple[str, ...] = ()


@dataclass(slots=True)
class _Judged:
    """What is remembered about one candidate between looks."""

    files: tuple[File, ...]
    unchanged_since: float
    verdict: Inspection | CheckpointError
    accepted: bool = False
    told: bool = False


@dataclass(slots=True)
class _Findings:
    """What one look collects."""

    found: list[Found] = field(default_factory=list)
    corrupt: list[Settlement] = field(default_factory=list)
    waiting: list[tuple[str, str]] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)


class Catalog:
    """The checkpoints of one directory and its pins, as this process has come to know them.

    Args:
        root: the checkpoint directory; it may not exist yet.
        pins: the folder of pins; it may not exist yet.
        settle_seconds: how long the files of a checkpoint that no state file names must stay unchanged.
        corrupt_after_seconds: how long those of a named but broken one must, before it is given up.
        step_key: the object-graph path of the variable that holds the step; no other is then looked at.
        step_pattern: regular expression whose first group is the step in a name.
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
        step_key: str | None = None,
        step_pattern: str = STEP_PATTERN,
        clock: Clock,
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root.absolute()
        self._pins = pins.absolute()
        self._settle_seconds = settle_seconds
        self._corrupt_after_seconds = corrupt_after_seconds
        self._step_key = step_key
        self._step_pattern = re.compile(step_pattern)
        self._clock = clock
        self._looked = looked
        self._judged: dict[tuple[str, str], _Judged] = {}
        self._pinned: dict[str, tuple[tuple[int, int, int], Found]] = {}
        self._bad_pins: dict[str, float] = {}  # since when they cannot be read
        # By (name, digest): ordinal and time of discovery. Never forgotten: what flickers must not look new again.
        self._discovered: dict[tuple[str, str], tuple[int, float]] = {}

    def look(self) -> Look:
        """Look once; raises `StorageError` if a folder exists and cannot be read."""
        now, findings = self._clock.now(), _Findings()
        missing = False
        try:
            self._look_at_root(findings, now)
        except FileNotFoundError:
            missing = True
            self._judged.clear()
        except OSError as error:
            raise StorageError(f"cannot read the checkpoint directory {self._root}: {error.strerror}") from error
        # After the directory: what is pinned and deleted meanwhile is seen in one of them.
        self._look_at_pins(findings, now)
        found = self._in_order({item.checkpoint.key: item for item in findings.found}.values(), now)
        return Look(found, tuple(findings.corrupt), tuple(findings.waiting), missing, tuple(findings.unusable))

    def _look_at_root(self, findings: _Findings, now: float) -> None:
        listing = list_files(self._root)
        known, self._judged = self._judged, {}
        for format_ in FORMATS.values():
            for candidate in format_.candidates(self._root, listing):
                self._looked()
                if candidate.leaving is not None:
                    findings.waiting.append((candidate.name, f"{candidate.leaving} is a link out of the directory"))
                    continue
                key = format_.name, candidate.name
                try:
                    judged = self._judge(format_, candidate, known.get(key), now)
                    self._report(format_, candidate, judged, findings, now)
                except VanishedError:
                    continue  # deleted while it was looked at
                except OSError as error:
                    findings.waiting.append((candidate.name, f"cannot be read: {error.strerror}"))
                    continue
                self._judged[key] = judged

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
            return replace(known, files=candidate.files, verdict=verdict)  # a link was made to it, or undone
        return _Judged(candidate.files, now, verdict)

    def _report(self, format_: Format, candidate: Candidate, judged: _Judged, findings: _Findings, now: float) -> None:
        unchanged_seconds = now - judged.unchanged_since
        if isinstance(judged.verdict, CheckpointError):
            if candidate.named and unchanged_seconds >= self._corrupt_after_seconds:
                if not judged.told:
                    findings.corrupt.append(self._give_up(format_, candidate, judged.verdict))
                    judged.told = True
            else:
                findings.waiting.append((candidate.name, str(judged.verdict)))
            return
        judged.accepted = judged.accepted or candidate.committed or unchanged_seconds >= self._settle_seconds
        if judged.accepted:
            files = tuple(file for file in candidate.files if file.name in judged.verdict.files)
            checkpoint = self._checkpoint(format_, candidate.name, judged.verdict)
            findings.found.append(Found(checkpoint, self._root, _written_at(files), now, files))
        else:
            reason = f"whole, but no state file says so: waits until unchanged for {self._settle_seconds:g} s"
            findings.waiting.append((candidate.name, reason))

    def _give_up(self, format_: Format, candidate: Candidate, error: CheckpointError) -> Settlement:
        digest = sampled_digest(self._root, (file.name for file in candidate.files))
        step = _step_in(candidate.name, format_, self._step_pattern)
        return Settlement(candidate.name, digest, step, "corrupt", str(error))

    def _look_at_pins(self, findings: _Findings, now: float) -> None:
        known, self._pinned = self._pinned, {}
        bad, self._bad_pins = self._bad_pins, {}
        try:
            with os.scandir(self._pins) as entries:
                folders = [entry for entry in entries if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot read the pins in {self._pins}: {error.strerror}") from error
        for entry in folders:
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
                findings.waiting.append((name, f"unusable pin: {error}"))
                self._bad_pins[name] = bad.get(name, now)
                if now - self._bad_pins[name] >= self._corrupt_after_seconds:
                    findings.unusable.append(name)
                continue
            self._pinned[name] = signature, found
            findings.found.append(found)

    def _read_pin(self, folder: Path) -> Found:
        """What a pin holds; its name is a promise about its content, and the content is believed."""
        listing = list_files(folder)
        for format_ in FORMATS.values():
            for candidate in format_.candidates(folder, listing):
                inspection = format_.inspect(folder, candidate.name, step_key=self._step_key)
                checkpoint = self._checkpoint(format_, candidate.name, inspection)
                if checkpoint.folder == folder.name:
                    checkpoint = replace(checkpoint, pin=f"{self._pins.name}/{folder.name}")
                    _, seen_at = self._discovered.get(checkpoint.key, (0, self._clock.now()))
                    return Found(checkpoint, folder, _written_at(candidate.files), seen_at, candidate.files)
        raise IncompleteError(f"{folder} does not hold the checkpoint it is named after")

    def _checkpoint(self, format_: Format, name: str, inspection: Inspection) -> Checkpoint:
        step = _step_in(name, format_, self._step_pattern) if inspection.step is None else inspection.step
        return Checkpoint(name, inspection.digest, step, format_.name)

    def _in_order(self, found: Iterable[Found], now: float) -> tuple[Found, ...]:
        items, discovered = list(found), self._discovered
        for item in sorted((item for item in items if item.checkpoint.key not in discovered), key=_by_step_and_name):
            discovered[item.checkpoint.key] = len(discovered), now
        items.sort(key=lambda item: discovered[item.checkpoint.key][0])
        return tuple(
            item if item.seen_at == (seen_at := discovered[item.checkpoint.key][1]) else replace(item, seen_at=seen_at)
            for item in items
        )


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
    return max(file.mtime_ns for file in files) / 1e9


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
