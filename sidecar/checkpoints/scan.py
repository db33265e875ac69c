"""What a look at checkpoints finds, as one record: the catalog makes it, the keeper and the daemon read it."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path

from sidecar.checkpoints.files import File
from sidecar.records import Checkpoint, Key, Settlement


@dataclass(frozen=True, slots=True)
class DiscoveredCheckpoint:
    """A complete checkpoint. If it is pinned, `folder` is the pin and `checkpoint.pin` is set."""

    checkpoint: Checkpoint
    folder: Path  # absolute; holds its files now
    written_at: float  # wall seconds, by the storage's clock: the newest modification of its files
    seen_at: float  # `Clock.now()` of the look that first found it complete, or found what was written after it
    files: tuple[File, ...] = ()  # what it consists of, as this look saw it


@dataclass(frozen=True, slots=True)
class BrokenPin:
    """A pin that does not hold what it should; `certain` once that has been so for `corrupt_after_seconds`."""

    found: DiscoveredCheckpoint  # what it should hold
    why: str
    certain: bool


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What one look saw.

    `found` is in order of discovery, within one look by step and natural order of names. `corrupt` tells of each broken
    checkpoint once: in the look that gave it up. `waiting` has (name, reason) of what is not complete, or not yet.
    `missing`: the directory does not exist.

    `broken` are pins that cannot be read any more, and why; whether it stayed so for long enough to give them up.
    `copied` are gone, but some node is copying them still: they may yet be pinned. `making`: of what is pinned by some
    node, and was never seen here, the first 12 digits of the digests.

    `unknown`: folder names of checkpoints (`Checkpoint.folder`) that this node cannot read now, and why; those that it
    found before are in `by_key` as they were known. `unclaimed`: folder names of pins of which this node never knew
    more than the name. `failed`: folder names of those that could not be pinned or let go, and why; that is tried
    again. `folders`: sub-folders in which something changed last, and of which file events should tell. `below`: what
    to set, as nothing was found, but sub-folders that are not looked at hold checkpoints.

    `by_key` is `found` again, `pinned` those of it that are. As long as nothing is found or lost, they are the very
    objects of the look before. `news` are the keys of what came, went or changed since `by_key` was `before`, and
    `order` sorts keys by discovery: who wants the one that is new need not go through tens of thousands.
    """

    found: tuple[DiscoveredCheckpoint, ...]
    corrupt: tuple[Settlement, ...]
    waiting: tuple[tuple[str, str], ...]
    missing: bool
    by_key: Mapping[Key, DiscoveredCheckpoint] = field(default_factory=dict, compare=False)
    pinned: Mapping[Key, DiscoveredCheckpoint] = field(default_factory=dict, compare=False)
    broken: tuple["BrokenPin", ...] = ()
    before: Mapping[Key, DiscoveredCheckpoint] | None = field(default=None, compare=False)
    news: AbstractSet[Key] = field(default=frozenset(), compare=False)
    order: Mapping[Key, tuple[float, float]] = field(default_factory=dict, compare=False)
    copied: frozenset[Key] = frozenset()
    making: frozenset[str] = frozenset()
    unknown: Mapping[str, str] = field(default_factory=dict)
    unclaimed: frozenset[str] = frozenset()
    failed: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    below: str | None = None

    def __post_init__(self) -> None:
        if len(self.by_key) != len(self.found):
            object.__setattr__(self, "by_key", {each.checkpoint.key: each for each in self.found})
            pinned = {key: each for key, each in self.by_key.items() if each.checkpoint.pin is not None}
            object.__setattr__(self, "pinned", pinned)
            order = self.order or {key: (place, 0.0) for place, key in enumerate(self.by_key)}
            object.__setattr__(self, "order", order)

    def news_since(self, before: Mapping[Key, DiscoveredCheckpoint]) -> AbstractSet[Key]:
        """Keys of what came, went or changed since `by_key` was that."""
        if before is self.by_key:
            return frozenset()
        if before is self.before:
            return self.news
        return {key for key in self.by_key.keys() | before.keys() if self.by_key.get(key) is not before.get(key)}

    def in_order(self, keys: Iterable[Key]) -> list[Key]:
        """Those of the keys that are found, in order of discovery."""
        return sorted(filter(self.by_key.__contains__, keys), key=self.order.__getitem__)

    def changed(self, changes: Mapping[Key, DiscoveredCheckpoint | None]) -> "ScanResult":
        """The same, but for these, which are its news then; None: it is not found after all."""
        if not changes:
            return self
        by_key, pinned = dict(self.by_key), dict(self.pinned)
        come = [key for key, found in changes.items() if found is not None and key not in by_key]
        for key, found in changes.items():
            if found is None:
                by_key.pop(key, None)
            else:
                by_key[key] = found
            if found is None or found.checkpoint.pin is None:
                pinned.pop(key, None)
            else:
                pinned[key] = found
        order = self.order
        if come:
            order = {**dict.fromkeys(come, (float("inf"), 0.0)), **order}  # who made the look may not know its past
            by_key = {key: by_key[key] for key in sorted(by_key, key=order.__getitem__)}
        there, news = tuple(by_key.values()), frozenset(changes)
        return replace(self, found=there, by_key=by_key, pinned=pinned, before=self.by_key, news=news, order=order)


def written_at(files: Iterable[File]) -> float:
    """Seconds since 1970, by the storage's clock, of the newest modification; 0 without files."""
    return max((file.mtime_ns for file in files), default=0) / 1e9


def parent_of(name: str) -> str:
    """Return the folder that a checkpoint lies in, from the checkpoint directory; empty: that directory itself."""
    return name.rpartition("/")[0]


def in_folder(folder: str, name: str) -> str:
    """Return the full name of the checkpoint `name` in a folder of the checkpoint directory, or in that itself."""
    return f"{folder}/{name}" if folder else name
