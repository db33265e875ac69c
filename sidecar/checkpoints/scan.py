"""Define the records of one scan, of checkpoints and of pins. The pins and the daemon read them. No I/O."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from sidecar.checkpoints.files import File
from sidecar.protocol.records import Checkpoint, Key, Settlement

SUPPORTED_CHECKPOINTS: Final = 5000
"""The most checkpoints in one directory with which all aims hold. Scans of more checkpoints work, but take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredCheckpoint:
    """Describe a complete checkpoint. If it is pinned, `folder` is the pin and `checkpoint.pin` is set."""

    checkpoint: Checkpoint
    folder: Path  # absolute; holds its files now
    written_at: float  # wall seconds, by the storage's clock: the newest modification of its files
    seen_at: float  # `Clock.now()` of the scan that first found it complete, or found what was written after it
    files: tuple[File, ...] = ()  # its files, as this scan saw them


@dataclass(frozen=True, slots=True)
class BrokenPin:
    """Describe a pin with wrong content, which is `certain` once that has lasted for `corrupt_after_seconds`."""

    expected: DiscoveredCheckpoint  # what it should hold
    why: str
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """Hold the result of one scan."""

    # The complete checkpoints in order of discovery; within one scan by step and natural order of names
    by_key: Mapping[Key, DiscoveredCheckpoint] = field(default_factory=dict)
    # Checkpoints that this scan gave up because their files are damaged. Each is reported once.
    corrupt: tuple[Settlement, ...] = ()
    waiting: tuple[tuple[str, str], ...] = ()  # (name, reason) of each candidate that is not complete
    # (name, reason) of each checkpoint that is not evaluated: it has the training state of another one, or is the copy
    # of a callback
    left_out: tuple[tuple[str, str], ...] = ()
    missing: bool = False  # whether the checkpoint directory does not exist
    # The place in the order of discovery of every checkpoint that this process ever discovered
    places: Mapping[Key, int] = field(default_factory=dict)
    broken: tuple[BrokenPin, ...] = ()  # pins that cannot be read any more, and whether that is certain
    # Deleted checkpoints that some node is still copying, so that they may yet be pinned
    copied: frozenset[Key] = frozenset()
    # The first 12 digits of the digests of unfinished pins, if this node has never seen the checkpoint
    making: frozenset[str] = frozenset()
    # Why checkpoints cannot be read now, by their folder names (`Checkpoint.folder`). Those that were found before are
    # in `by_key` as they were known.
    unknown: Mapping[str, str] = field(default_factory=dict)
    unclaimed: frozenset[str] = frozenset()  # folder names of pins that this node has never been able to read
    # Why checkpoints could not be pinned or unpinned, by their folder names. That is tried again.
    failed: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()  # sub-folders in which something changed last, and which should be watched
    # A remedy, if nothing was found because the checkpoints are in sub-folders that are not scanned
    below: str | None = None

    @property
    def found(self) -> tuple[DiscoveredCheckpoint, ...]:
        """Return the complete checkpoints in order of discovery."""
        return tuple(self.by_key.values())

    def pinned(self) -> dict[Key, DiscoveredCheckpoint]:
        """Return the complete checkpoints that are pinned, in order of discovery."""
        return {key: found for key, found in self.by_key.items() if found.checkpoint.pin is not None}

    def with_changes(self, changes: Mapping[Key, DiscoveredCheckpoint | None]) -> "ScanResult":
        """Return the same result with these checkpoints added, replaced or, for `None`, removed.

        A checkpoint that the catalog never discovered comes last.
        """
        if not changes:
            return self
        changed = {key: found for key, found in {**self.by_key, **changes}.items() if found is not None}
        if changed.keys() - self.by_key.keys():
            changed = dict(sorted(changed.items(), key=lambda item: self.places.get(item[0], sys.maxsize)))
        return replace(self, by_key=changed)


def written_at(files: Iterable[File]) -> float:
    """Return the newest modification in seconds since 1970, by the storage's clock; 0 without files."""
    return max((file.mtime_ns for file in files), default=0) / 1e9


def parent_of(name: str) -> str:
    """Return the path of a checkpoint's folder from the checkpoint directory; empty: that directory itself."""
    return name.rpartition("/")[0]


def in_folder(folder: str, name: str) -> str:
    """Return the full name of the checkpoint `name`. `folder`: its path from the checkpoint directory; may be empty."""
    return f"{folder}/{name}" if folder else name


@dataclass(frozen=True, slots=True, kw_only=True)
class PinScan:
    """Hold the result of one scan of the pins.

    `found`: the checkpoints that pins hold. `reasons`: (folder name, reason) of each pin that cannot be used. The other
    fields are as in `ScanResult`, but `making` also has the unfinished pins of checkpoints that this scan found.
    """

    found: Mapping[Key, DiscoveredCheckpoint] = field(default_factory=dict)
    broken: tuple[BrokenPin, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    unclaimed: frozenset[str] = frozenset()
    reasons: tuple[tuple[str, str], ...] = ()
    making: frozenset[str] = frozenset()


class PinScanner(Protocol):
    """Scan the pins of a run."""

    def scan(self, now: float) -> PinScan:
        """Scan once; `now` in seconds of the node's clock. Raises `StorageError` if nothing can be read."""
