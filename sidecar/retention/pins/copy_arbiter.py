"""Decide which node copies a checkpoint whose files cannot be linked, because each copy takes bandwidth from training.

Links cost nothing, so every node makes them at once. The first node makes the copy. The next node makes it if no copy
appears, or if a copy that was begun no longer grows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.protocol.records import Key


@dataclass(slots=True)
class _Copy:
    """Hold the progress of a copy by any node, by its largest size: a copy that begins again has made no progress."""

    began_at: float
    grew_at: float
    most: int = -1  # bytes

    @property
    def seconds(self) -> float:
        """Return the seconds during which the copy grew."""
        return self.grew_at - self.began_at


@dataclass(slots=True)
class CopyArbiter:
    """Remember how copies grow, by this node's own clock, which is never compared with the storage's times."""

    copy_turn_seconds: float = 10.0  # for each node that comes before this one
    shares_pins: bool = True  # whether a copy of one node serves all; else each node makes its own at once
    _copies: dict[Key, _Copy] = field(default_factory=dict)
    _asked: set[Key] = field(default_factory=set)  # in this scan
    _read: Callable[[], Mapping[str, int]] = dict
    _bytes: Mapping[str, int] | None = None  # None: not read yet in this scan

    def begin(self, read: Callable[[], Mapping[str, int]]) -> None:
        """Begin a scan. `read`: returns the bytes of all nodes' copies; it is called at most once in a scan."""
        self._read, self._bytes = read, None
        self._copies = {key: copy for key, copy in self._copies.items() if key in self._asked}
        self._asked = set()

    def copied(self, discovered: DiscoveredCheckpoint) -> int | None:
        """Return the bytes of a checkpoint that some node has copied so far; None if no node copies it."""
        return self._bytes_of(discovered.checkpoint.digest[:12])

    def is_mine(self, discovered: DiscoveredCheckpoint, *, before: int, now: float) -> bool:
        """Return whether this node should copy a checkpoint now.

        `before`: the number of nodes whose turn comes first. `now`: seconds of this node's clock.
        """
        copied = self.copied(discovered)
        copy = self._follow(discovered.checkpoint.key, copied, now)
        patience = self.copy_turn_seconds * (before * self.shares_pins + (copied is not None))
        if copied is not None and copied >= sum(file.size for file in discovered.files):
            patience += copy.seconds  # the whole copy is made durable and checked, at least as fast as it was copied
        return now >= copy.grew_at + patience

    def goes_on(self, digest: str, now: float) -> bool:
        """Return whether some node still copies a checkpoint that this node knows only by 12 digits of its digest."""
        copied = self._bytes_of(digest)
        copy = self._follow(("", digest), copied, now)
        return copied is not None and now < copy.grew_at + self.copy_turn_seconds + copy.seconds

    def anything_goes_on(self, now: float) -> bool:
        """Return whether any node is still copying anything."""
        self._bytes_of("")
        return bool([digest for digest in self._bytes or () if self.goes_on(digest, now)])

    def _bytes_of(self, digest: str) -> int | None:
        """Return the bytes of the copies of a digest, after reading them once in a scan."""
        if self._bytes is None:
            self._bytes = self._read()
        return self._bytes.get(digest)

    def _follow(self, key: Key, copied: int | None, now: float) -> _Copy:
        """Update the progress of a copy, and return it."""
        self._asked.add(key)
        copy = self._copies.setdefault(key, _Copy(now, now))
        if copied is not None and copied > copy.most:
            copy.began_at = now if copy.most < 0 else copy.began_at
            copy.most, copy.grew_at = copied, now
        return copy
