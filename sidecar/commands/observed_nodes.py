"""Observe liveness for a command that only reads: a heartbeat changes between two readings. Pure.

Only the reader's own clock counts. A file proves nothing by itself, so after one reading no node is known to live;
except where the times of files are compared with this node's clock (`telling_ages`): in a bucket, whose every request
takes long, and on a filesystem of this machine, whose clock is the same.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from sidecar.coordination.liveness import HeartbeatReadings, SignsOfLife, natural_order
from sidecar.protocol.heartbeat import Heartbeat

_ARRIVALS_KEPT: Final = 64  # more than any measurement needs
_GAPS_NEEDED: Final = 2

_CLOCKS_SECONDS: Final = 2.0
"""The difference between two clocks that are right, and the resolution of a store's times."""

_SKEW_SECONDS: Final = 900.0
"""The largest difference: object stores refuse signed requests by a clock that differs more."""


def telling_ages(
    written: Mapping[str, float], wall: float, trusted_seconds: float, lease_seconds: float
) -> dict[str, float]:
    """Return the seconds since the write of each file that is at most `trusted_seconds` ago, or long ago.

    `written`: by node, the time by the storage's clock. `wall`: the time here. A file from the future proves that the
    two clocks differ, so nothing is returned, and the nodes have to be watched.
    """
    ages = {node: wall - at for node, at in written.items()}
    if min(ages.values(), default=0.0) < -_CLOCKS_SECONDS:
        return {}
    long_ago = lease_seconds + _SKEW_SECONDS
    return {node: max(0.0, age) for node, age in ages.items() if age <= trusted_seconds or age > long_ago}


@dataclass(slots=True)
class ObservedNode:
    """Follow one node's heartbeat; times are seconds of the reader's clock."""

    heartbeat: Heartbeat
    signs: SignsOfLife
    read_at: float
    # When the file was seen changed by the same daemon, and the number of that beat.
    arrivals: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))

    @property
    def left(self) -> bool:
        """Return whether the daemon reported its end."""
        return self.signs.left

    @property
    def changed(self) -> bool:
        """Return whether the file has changed since the first reading."""
        return self.signs.changed

    @property
    def silent_seconds(self) -> float:
        """Return the seconds since the last change, or since the first reading if there was no change."""
        return self.read_at - self.signs.since

    def fresh(self, lease_seconds: float) -> bool | None:
        """Return whether the node is alive; None if it was not observed for long enough."""
        return self.signs.is_alive(self.read_at, lease_seconds)

    def late_seconds(self, beat_seconds: float) -> float | None:
        """Return how late its beats are seen, at most, as the gaps between them show; None before there are two gaps.

        If a node beats every T seconds and a gap of G seconds is seen, the beat after the gap was seen at least G - T
        seconds late, whatever the clocks: the first beat within the gap was written T seconds after the one before it.
        T is `beat_seconds`, or the shortest time between two beats if that is longer. A constant delay does not show.
        It does no harm either, because the lease counts from the moment at which a change is seen.
        """
        if len(self.gaps) < _GAPS_NEEDED:
            return None
        paces = [
            (later - earlier) / max(1, beat - before) for (earlier, before), (later, beat) in pairwise(self.arrivals)
        ]
        return max(0.0, max(self.gaps) - max(beat_seconds, min(paces)))

    @property
    def gaps(self) -> list[float]:
        """Return the seconds between each seen change and the next."""
        return [later - earlier for (earlier, _), (later, _) in pairwise(self.arrivals)]


class ObservedNodes:
    """Hold all nodes whose heartbeat was ever read, in natural order of their names."""

    def __init__(self) -> None:
        self._of: dict[str, ObservedNode] = {}

    def __iter__(self) -> Iterator[ObservedNode]:
        return iter(self._of[node] for node in sorted(self._of, key=natural_order))

    def update(self, reading: HeartbeatReadings, now: float, ages: Mapping[str, float] = {}) -> None:
        """Note the reading at `now`. A file that cannot be read counts as unchanged. `ages`: see `telling_ages`."""
        for node in self._of.values():
            node.read_at = now
        for heartbeat in reading.heartbeats:
            observed = self._of.get(heartbeat.node)
            if observed is None:
                since = now - ages.get(heartbeat.node, 0.0)
                signs = SignsOfLife(since, heartbeat, changed=heartbeat.node in ages)
                self._of[heartbeat.node] = ObservedNode(heartbeat, signs, now)
            elif observed.signs.note(heartbeat, now):
                if heartbeat.incarnation == observed.heartbeat.incarnation:
                    observed.arrivals.append((now, heartbeat.beat))
                else:
                    observed.arrivals.clear()
                observed.heartbeat = heartbeat

    def unknown(self) -> list[str]:
        """Return the nodes for which one more reading may show whether they are alive."""
        return [observed.heartbeat.node for observed in self if not observed.changed and not observed.left]
