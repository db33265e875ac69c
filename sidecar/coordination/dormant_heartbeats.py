"""Follow the heartbeat files that were not written for long, and remove those of nodes that are gone.

`heartbeats` skips these files at a start. The age of a file is the difference between the time at which it was written
and the time at which this node's own heartbeat was written. Both times come from the storage's clock, never from this
machine's. An NFS client with delegated timestamps, `touch` and `cp -p` set other times, so the age does not prove that
a node is gone. As soon as the time of a dormant file changes in any way, its node counts as active.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.coordination.storage import Storage
from sidecar.errors import StorageError

DORMANT_SECONDS: Final = 3600.0
"""A file without a write for that long, or for ten leases if that is longer, is dormant: live nodes write each beat."""

_REMOVED_SECONDS: Final = 7 * 86400.0
"""A file without a write for that long is removed. A node that comes back later writes a new one."""

_OBSERVED_SECONDS: Final = 3600.0
"""A file must have the same content for that long, as this node reads it, before it is removed."""

_REMOVED_AT_ONCE: Final = 2  # in one call: nothing waits for it
_TIMES_AGAIN_SECONDS: Final = 30.0  # between two readings of the times of all files, however few there are

_SHARE_OF_TIMES: Final = 4
"""Asking for the times of many files adds at most one request to that many reads: nothing urgent depends on them."""


@dataclass(slots=True)
class _Known:
    """Hold this node's knowledge of a dormant file."""

    written_at: float
    content: object = None  # by the first reading
    read_at: float | None = None  # on this node's clock


class DormantHeartbeats:
    """Hold the dormant files of one folder, by path."""

    def __init__(self, storage: Storage, folder: str, seconds: float, requests_per_second: float) -> None:
        self._storage, self._folder, self._seconds = storage, folder, seconds
        self._requests_per_second = requests_per_second
        self._next = float("-inf")
        self._written: Mapping[str, float] = {}
        self._own: tuple[float, float] | None = None  # the write of this node's file, on the storage's clock and here
        self._known: dict[str, _Known] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._known

    def written_at(self, path: str) -> float:
        """Return when a file was written, on the storage's clock. The newest are read first; unknown counts as now."""
        return self._written.get(path, float("inf"))

    def storage_time(self, now: float) -> float | None:
        """Return the time of the storage's clock; `None` if it is not known yet."""
        return None if self._own is None else self._own[0] + now - self._own[1]

    def update(
        self,
        own: str | None,
        now: float,
        times: Mapping[str, float] | None = None,
        names: Callable[[], Collection[str]] | None = None,
    ) -> list[str]:
        """Read the times of all files if that is due, and return the files that are not dormant any more.

        `own`: the path of this node's file, which was written just now. `times`: of all files, if they are known. If
        there are many files, their times are read less often, so that the load on storage stays that of a quarter of
        `requests_per_second` reads. `names`: returns those of the files that are asked for; None: all.
        """
        if own is None or now < self._next:
            return []
        try:
            asked = None if names is None else names()
            listed = self._storage.modified(self._folder, asked) if times is None else times
            found = {f"{self._folder}/{name}": at for name, at in listed.items()}
        except StorageError:
            found = {}
        self._next = now + max(_TIMES_AGAIN_SECONDS, len(found) * _SHARE_OF_TIMES / self._requests_per_second)
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

    def wake(self, path: str) -> bool:
        """Count a file as active, because its node is seen to beat, and return whether it was dormant."""
        return self._known.pop(path, None) is not None

    def clean(self, now: float, read: Callable[[str], tuple[object, bool]]) -> None:
        """Remove a few files of nodes that left, and files that did not change and were not written for a week.

        `read`: returns the content of a file, for a comparison, and whether its node left; raises `StorageError`. Other
        nodes may remove the same files at the same time.
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
            except StorageError:  # this file is tried again after the other files
                continue

    @staticmethod
    def _is_due(known: _Known, now: float) -> bool:
        """Return whether a file may be read again, to compare its content with the first reading."""
        return known.read_at is None or now >= known.read_at + _OBSERVED_SECONDS
