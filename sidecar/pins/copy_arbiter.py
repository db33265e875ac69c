"""Decide which node copies a checkpoint whose files cannot be linked: each copy takes bandwidth from training.

Links cost nothing, so every node makes them at once. The first node makes the copy. The next node makes it if no copy
appears, or if one that was begun no longer grows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.records import Key


@dataclass(slots=True)
class _Copy:
    """A copy by another node, or none so far. Its largest size counts: one that begins again gets no further."""

    began_at: float
    grew_at: float
    most: int = -1  # bytes

    @property
    def seconds(self) -> float:
        """Return for how long it grew."""
        return self.grew_at - self.began_at


@dataclass(slots=True)
class CopyArbiter:
    """Remember how copies grow, by this node's own clock; the storage's times are never compared with it."""

    copy_turn_seconds: float = 10.0  # for each node that comes before this one
    _copies: dict[Key, _Copy] = field(default_factory=dict)
    _asked: set[Key] = field(default_factory=set)  # in this scan
    _read: Callable[[], Mapping[str, int]] = dict
    _bytes: Mapping[str, int] | None = None  # None: this scan did not ask yet

    def begin(self, read: Callable[[], Mapping[str, int]]) -> None:
        """Begin a scan. `read` returns how far copies are on any node; it is called at most once in a scan."""
        self._read, self._bytes = read, None
        self._copies = {key: copy for key, copy in self._copies.items() if key in self._asked}
        self._asked = set()

    def copied(self, discovered: DiscoveredCheckpoint) -> int | None:
        """Return bytes that some node has copied of it so far; None: none is at it."""
        return self._bytes_of(discovered.checkpoint.digest[:12])

    def is_mine(self, discovered: DiscoveredCheckpoint, *, before: int, now: float) -> bool:
        """Return whether this node should copy it now; `before`: nodes that come first; `now`: seconds of its clock."""
        copied = self.copied(discovered)
        copy = self._follow(discovered.checkpoint.key, copied, now)
        patience = self.copy_turn_seconds * (before + (copied is not None))
        if copied is not None and copied >= sum(file.size for file in discovered.files):
            patience += copy.seconds  # it is made durable, and checked: no slower than it was copied
        return now >= copy.grew_at + patience

    def goes_on(self, digest: str, now: float) -> bool:
        """Return whether some node still copies a checkpoint never seen here, of which 12 digits are known."""
        copied = self._bytes_of(digest)
        copy = self._follow(("", digest), copied, now)
        return copied is not None and now < copy.grew_at + self.copy_turn_seconds + copy.seconds

    def anything_goes_on(self, now: float) -> bool:
        """Return whether any node is still copying anything."""
        self._bytes_of("")
        return bool([digest for digest in self._bytes or () if self.goes_on(digest, now)])

    def _bytes_of(self, digest: str) -> int | None:
        if self._bytes is None:
            self._bytes = self._read()
        return self._bytes.get(digest)

    def _follow(self, key: Key, copied: int | None, now: float) -> _Copy:
        self._asked.add(key)
        copy = self._copies.setdefault(key, _Copy(now, now))
        if copied is not None and copied > copy.most:
            copy.began_at = now if copy.most < 0 else copy.began_at
            copy.most, copy.grew_at = copied, now
        return copy
