"""Heartbeat files that nobody has written for long: not read at a start, and removed in the end.

Called by `members`, in the daemon's I/O thread. A file is judged by when it was written, compared with when this node's
own heartbeat was: both times come from the storage's clock, never from this machine's. An NFS client that was granted
delegated timestamps, `touch` and `cp -p` set other times; so this is no word about a node: as soon as the time of a
dormant file changes, whatever it is, its node is awake, and read before all others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.coordination.storage import Storage
from sidecar.errors import StorageError

DORMANT_SECONDS: Final = 3600.0
"""Without a write for so long, or for ten leases if that is longer: whoever lives writes at every beat."""

_REMOVED_SECONDS: Final = 7 * 86400.0
"""A node that was away for a holiday still has its file; if it comes back later, it writes a new one."""

_OBSERVED_SECONDS: Final = 3600.0
"""A file must say the same, as this node reads it, for so long before it is removed."""

_REMOVED_AT_ONCE: Final = 2  # at each look: nothing waits for it

_TIMES_AGAIN_SECONDS: Final = 30.0  # between two looks at the times of all files, however few there are


@dataclass(slots=True)
class _Known:
    """What is known of a dormant file."""

    written_at: float
    content: object = None  # as it was read first
    read_at: float | None = None  # on this node's clock


class DormantHeartbeats:
    """The dormant files of one folder, by path."""

    def __init__(self, storage: Storage, folder: str, seconds: float, asked_per_second: float) -> None:
        self._storage, self._folder, self._seconds = storage, folder, seconds
        self._asked_per_second = asked_per_second
        self._next = float("-inf")
        self._written: Mapping[str, float] = {}
        self._own: tuple[float, float] | None = None  # when the own file was written: the storage's time, and ours
        self._known: dict[str, _Known] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._known

    def written_at(self, path: str) -> float:
        """When a file was written, in the storage's time: a hint for who is read first. Unknown: just now."""
        return self._written.get(path, float("inf"))

    def storage_time(self, now: float) -> float | None:
        """The time of the storage's clock, as far as it is known."""
        return None if self._own is None else self._own[0] + now - self._own[1]

    def look(self, own: str | None, now: float) -> list[str]:
        """Look at the times of all files, if it is time to, and return who is awake again.

        `own` was written just now. What storage asks for that many times is as often as so many reads would be.
        """
        if own is None or now < self._next:
            return []
        try:
            found = {f"{self._folder}/{name}": at for name, at in self._storage.modified(self._folder).items()}
        except StorageError:
            found = {}
        self._next = now + max(_TIMES_AGAIN_SECONDS, len(found) / self._asked_per_second)
        if own not in found:
            return []
        before, times = self._known, self._written
        self._known = {
            path: before.get(path) or _Known(at)
            for path, at in found.items()
            if found[own] - at > self._seconds and times.get(path, at) == at
        }
        self._written, self._own = found, (found[own], now)
        return [path for path in before if path in found and path not in self._known]

    def clean(self, now: float, read: Callable[[str], tuple[object, bool]]) -> None:
        """Remove a few files of nodes that left, or that were not written for a week, and did not change meanwhile.

        `read` returns what a file says, to be compared, and whether its node left; it raises `StorageError`. Other
        nodes do the same: what is gone is gone.
        """
        if self._own is None:
            return
        due = [path for path, known in self._known.items() if self._is_due(known, now)]
        for path in due[:_REMOVED_AT_ONCE]:
            known = self._known[path]
            before, was_read = known.content, known.read_at is not None
            known.read_at = now
            try:
                known.content, left = read(path)
                old = left or self._own[0] - known.written_at > _REMOVED_SECONDS
                if was_read and known.content == before and old:
                    self._storage.remove(path)
                    del self._known[path]
            except StorageError:  # it stays, and is asked for again when the others were
                continue

    @staticmethod
    def _is_due(known: _Known, now: float) -> bool:
        return known.read_at is None or now >= known.read_at + _OBSERVED_SECONDS
