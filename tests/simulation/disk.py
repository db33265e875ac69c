"""The storage that all nodes share, in memory: records by name, checkpoints, and what workers saved. And the pins.

The truth that the invariants look at stands here; what a node sees of it, and when, is `storage`'s business.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

JOURNAL = ("plans/", "outcomes/", "segments/", "run.json")


@dataclass(frozen=True, slots=True)
class Content:
    """One save of the trainer. `corrupt_on`: nodes that cannot read it; `wrong_on`: that read other bits."""

    name: str
    digest: str
    step: int
    written_at: float
    corrupt_on: frozenset = frozenset()
    wrong_on: frozenset = frozenset()
    schema: int = 1  # releases before that one do not know its format

    @property
    def key(self) -> tuple[str, str]:
        """Return what identifies the checkpoint."""
        return self.name, self.digest


@dataclass(slots=True)
class Saved:
    """Hold what one rank saved for one plan."""

    worker: str
    durable: bool = False
    # Since when all nodes see it, if the state lies in a bucket; before, it is on one node's disk
    uploaded_at: float = float("inf")


@dataclass(slots=True)
class Disk:
    """Records, checkpoints, pins and saves."""

    files: dict[str, bytes] = field(default_factory=dict)
    folders: dict[str, set[str]] = field(default_factory=dict)
    unsynced: dict[str, bytes | None] = field(default_factory=dict)  # replaced without fsync: what stood there before
    unreturned: set[str] = field(default_factory=set)  # created, but no creator knows yet
    written: dict[str, float] = field(default_factory=dict)  # when files were replaced, by the storage's clock
    former: dict[str, bytes] = field(default_factory=dict)  # heartbeats before the newest
    exists: bool = False  # the checkpoint directory
    keeps_names: bool = False  # whether every write is durable once it was carried out, as in an object store
    done_at: float | None = None  # since when the trainer's marker is there
    checkpoints: dict[str, Content] = field(default_factory=dict)
    # By the node on whose disk they are, and by their folders. With the state in an object store each node has its own
    pins_on: dict[str, dict[str, Content]] = field(default_factory=dict)
    # Pins in the making, by digest and life: how far they are, what was opened to be copied, and the pin's folder.
    copies: dict[tuple[str, str], tuple[int, Content, str]] = field(default_factory=dict)
    exports: dict[str, tuple[Content, int]] = field(default_factory=dict)  # by folder: and the plan that it names
    leftovers: dict[str, float] = field(default_factory=dict)  # of copiers that died: since when they do not grow
    saves: dict[str, Saved] = field(default_factory=dict)

    @property
    def pins(self) -> dict[str, Content]:
        """Return the pins of all nodes, by their folders."""
        return {folder: content for pins in self.pins_on.values() for folder, content in pins.items()}

    def pins_of(self, node: str) -> dict[str, Content]:
        """Return the pins that a node sees, by their folders."""
        return self.pins_on.setdefault(node if self.keeps_names else "", {})

    def copies_of(self, life) -> dict[tuple[str, str], tuple[int, Content, str]]:
        """Return the pins in the making that a daemon sees."""
        if not self.keeps_names:
            return self.copies
        return {each: copy for each, copy in self.copies.items() if each[1] == life.incarnation}

    def unpin(self, folders) -> None:
        """Remove pins from all disks."""
        for pins in self.pins_on.values():
            for folder in folders:
                pins.pop(folder, None)

    def all(self) -> list[Content]:
        """Return what is in the directory or pinned; what is both, twice."""
        return [*self.checkpoints.values(), *self.pins.values()]

    def seen_by(self, node: str) -> list[Content]:
        """Return the same without what only other nodes have on their disks."""
        return [*self.checkpoints.values(), *self.pins_of(node).values()]

    def put(self, path: str, data: bytes) -> None:
        """Let a name stand for these bytes."""
        if path not in self.files:
            folder, _, name = path.rpartition("/")
            self.folders.setdefault(folder, set()).add(name)
        self.files[path] = data

    def drop(self, path: str) -> None:
        """Let a name be gone."""
        if self.files.pop(path, None) is not None:
            folder, _, name = path.rpartition("/")
            self.folders[folder].discard(name)

    def replace(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """Put it there, without making it durable or with that."""
        if durable:
            self.unsynced.pop(path, None)
        else:
            self.unsynced.setdefault(path, self.files.get(path))
        self.put(path, data)

    def names(self, folder: str) -> list[str]:
        """The names in a folder."""
        return sorted(self.folders.get(folder, ()))

    def sync(self) -> None:
        """Return what stands there is durable now."""
        self.unsynced.clear()
        self.unreturned.clear()

    def rewind(self, random: Random, paths: list[str], workers: set[str] | None) -> list[str]:
        """A machine came back without what it had not made durable; returns created names that are gone.

        `paths`: the names it may have lost; `workers`: those whose saves, None: all.
        """
        paths = [] if self.keeps_names else paths
        for path in [path for path in paths if path in self.unsynced]:
            before = self.unsynced.pop(path)
            how = random.random()
            if how < 0.4:
                self.put(path, self.files.get(path, b"")[: random.choice((0, 7))])  # torn
            elif how < 0.8:
                self.drop(path) if before is None else self.put(path, before)
        gone = [path for path in sorted(self.unreturned) if path in paths and random.random() < 0.5]
        for path in gone:
            self.drop(path)
            self.unreturned.discard(path)
        lost = [saved for saved in self.saves.items() if not saved[1].durable]
        for folder, saved in lost:
            if workers is None or saved.worker in workers:
                del self.saves[folder]
        return gone

    def wipe(self) -> None:
        """Somebody deleted the state directory. If it is in an object store, pins lie elsewhere."""
        self.files.clear()
        self.folders.clear()
        self.unsynced.clear()
        self.unreturned.clear()
        for pins in self.pins_on.values() if not self.keeps_names else ():
            pins.clear()
        self.copies.clear()
        self.exports.clear()
        self.saves.clear()

    def write(self, content: Content, keep: int | None) -> list[str]:
        """The trainer saves, and deletes what it keeps no longer; returns the names that are gone."""
        self.exists = True
        self.checkpoints.pop(content.name, None)
        self.checkpoints[content.name] = content
        gone = list(self.checkpoints)[:-keep] if keep else []
        for name in gone:
            del self.checkpoints[name]
        return gone

    def spoil(self, name: str, node: str | None) -> None:
        """A file goes bad, for all or as one node reads it: pins are hard links, so they go bad, too."""
        self._change(name, lambda content: replace(content, corrupt_on=content.corrupt_on | {node or "*"}))

    def mislead(self, name: str, node: str) -> None:
        """A node reads other bits from now on, and no checksum tells."""
        self._change(name, lambda content: replace(content, wrong_on=content.wrong_on | {node}))

    def _change(self, name: str, change: Callable[[Content], Content]) -> None:
        if name in self.checkpoints:
            self.checkpoints[name] = change(self.checkpoints[name])
        for pins in self.pins_on.values():
            pins.update((folder, change(content)) for folder, content in list(pins.items()) if content.name == name)


def quality(digest: str) -> float:
    """How good a checkpoint with that digest is found to be; some are equally good."""
    return int(digest[:2], 16) // 16 / 16


def digest_of(text: str) -> str:
    """A digest for content that is known by a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_bad(content: Content, node: str) -> bool:
    """Return whether it cannot be read on that node."""
    return "*" in content.corrupt_on or node in content.corrupt_on
