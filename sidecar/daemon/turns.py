"""Which node copies a checkpoint whose files cannot be linked: one is enough, as each copy takes from training.

Links cost nothing, so every node makes them at once. A copy is the first node's; the next in line makes it if none
appears, or one that was begun no longer grows.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from sidecar.records import Key


@dataclass(slots=True)
class _Copy:
    """Another node's, or none so far. What counts is the most: one that begins again and again gets nowhere."""

    began_at: float
    grew_at: float
    most: int = -1  # bytes


@dataclass(slots=True)
class Turns:
    """What this node saw of others' copies, by its own clock; the storage's times are never compared with it."""

    patience_seconds: float = 10.0  # for each node that comes before this one
    _copies: dict[Key, _Copy] = field(default_factory=dict)

    def is_mine(self, key: Key, *, size: int, before: int, copied: int | None, now: float) -> bool:
        """Whether this node should copy it now.

        Args:
            key: the checkpoint's.
            size: bytes of the whole.
            before: how many nodes come first.
            copied: bytes that another node has copied of it so far; None: none is at it.
            now: seconds of this node's clock.
        """
        copy = self._copies.setdefault(key, _Copy(now, now))
        if copied is not None and copied > copy.most:
            copy.began_at = now if copy.most < 0 else copy.began_at
            copy.most, copy.grew_at = copied, now
        patience = self.patience_seconds * (before + (copied is not None))
        if copied is not None and copied >= size:  # it becomes durable, and is checked: no slower than it was copied
            patience += copy.grew_at - copy.began_at
        return now >= copy.grew_at + patience

    def forget(self, *, but: AbstractSet[Key]) -> None:
        """Of the rest nobody asks any more."""
        self._copies = {key: copy for key, copy in self._copies.items() if key in but}
