"""Which daemons live, as somebody sees who only looks: their heartbeats change between two looks. Pure.

No clock but the looker's own is asked. A file that stands there says nothing; so the first look knows nobody.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from sidecar.agreement.members import Reading, natural_order
from sidecar.records import Heartbeat

_ARRIVALS_KEPT: Final = 64  # more than any measurement asks for
_GAPS_NEEDED: Final = 2


@dataclass(slots=True)
class Pulse:
    """What was seen of one member; times are seconds of the looker's clock."""

    heartbeat: Heartbeat
    since: float  # its last change, or the first look
    looked_at: float
    changed: bool = False
    # When the file was seen changed by the same daemon, and the number of that beat.
    arrivals: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))

    @property
    def left(self) -> bool:
        """Whether the daemon said that it ended."""
        return self.heartbeat.state == "left"

    @property
    def silent_seconds(self) -> float:
        """For how long it has not changed at least: nobody knows how long before the first look."""
        return self.looked_at - self.since

    def fresh(self, lease_seconds: float) -> bool | None:
        """Whether it is there; None: nobody has looked for long enough to say so."""
        if self.left:
            return False
        if self.silent_seconds >= lease_seconds:
            return False
        return True if self.changed else None

    def late_seconds(self, beat_seconds: float) -> float | None:
        """How late its beats are seen, at most, as far as gaps between them tell; None before there are two gaps.

        Somebody who beats every T seconds and is seen after a gap of G was seen at least G - T late, on whatever clock:
        the first beat within the gap was written T after the one before it. T is `beat_seconds`, or the shortest time
        a beat took if that is longer. A delay that never changes does not show, and does no harm: the lease is counted
        from what is seen.
        """
        if len(self.gaps) < _GAPS_NEEDED:
            return None
        paces = [
            (later - earlier) / max(1, beat - before) for (earlier, before), (later, beat) in pairwise(self.arrivals)
        ]
        return max(0.0, max(self.gaps) - max(beat_seconds, min(paces)))

    @property
    def gaps(self) -> list[float]:
        """Seconds between one seen change and the next."""
        return [later - earlier for (earlier, _), (later, _) in pairwise(self.arrivals)]


class Pulses:
    """The pulses of all members that were ever seen, in natural order of their nodes."""

    def __init__(self) -> None:
        self._of: dict[str, Pulse] = {}

    def __iter__(self) -> Iterator[Pulse]:
        return iter(self._of[node] for node in sorted(self._of, key=natural_order))

    def look(self, reading: Reading, now: float) -> None:
        """Note what a look at members' files found at `now`. A file that cannot be read now is as silent as before."""
        for pulse in self._of.values():
            pulse.looked_at = now
        for found in reading.heartbeats:
            known = self._of.get(found.node)
            if known is None:
                self._of[found.node] = Pulse(found, now, now)
            elif found != known.heartbeat and not _older(found, known.heartbeat):
                if found.incarnation == known.heartbeat.incarnation:
                    known.arrivals.append((now, found.beat))
                else:
                    known.arrivals.clear()
                known.heartbeat, known.since, known.changed = found, now, True

    def unknown(self) -> list[str]:
        """Nodes of which one more look may tell whether they live."""
        return [pulse.heartbeat.node for pulse in self if not pulse.changed and not pulse.left]


def _older(found: Heartbeat, known: Heartbeat) -> bool:
    """Whether storage showed the past."""
    return found.incarnation == known.incarnation and found.beat < known.beat
