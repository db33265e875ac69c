"""Which daemons live, as somebody sees who only looks: their heartbeats change between two looks. Pure.

No clock but the looker's own is asked. A file that stands there says nothing; so the first look knows nobody.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sidecar.agreement.members import Reading, natural_order
from sidecar.records import Heartbeat

_ARRIVALS_KEPT: Final = 64  # more than any measurement asks for


@dataclass(slots=True)
class Pulse:
    """What was seen of one member; times are seconds of the looker's clock."""

    heartbeat: Heartbeat
    since: float  # its last change, or the first look
    looked_at: float
    changed: bool = False
    arrivals: deque[float] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))  # of changes by beating on

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

    @property
    def gaps(self) -> list[float]:
        """Seconds between one seen change and the next."""
        return [later - earlier for earlier, later in zip(self.arrivals, list(self.arrivals)[1:], strict=False)]


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
                    known.arrivals.append(now)
                else:
                    known.arrivals.clear()
                known.heartbeat, known.since, known.changed = found, now, True

    def unknown(self) -> list[str]:
        """Nodes of which one more look may tell whether they live."""
        return [pulse.heartbeat.node for pulse in self if not pulse.changed and not pulse.left]


def _older(found: Heartbeat, known: Heartbeat) -> bool:
    """Whether storage showed the past."""
    return found.incarnation == known.incarnation and found.beat < known.beat
