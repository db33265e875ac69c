"""Decide which nodes are alive, from readings of their heartbeats. Pure: time is an argument.

The existence of a heartbeat proves nothing. The sign of life is a *change* that this reader sees. Times are seconds of
the reader's own clock, so the clocks of two machines are never compared.
"""

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final

from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.states import NodeState

LONG_SILENT_SECONDS: Final = 600.0
"""Nobody waits for a node that has been silent for that long."""

_GAPS: Final = 300
"""The lease follows the largest of that many gaps, and of as many before them: about ten minutes of beats."""

_JITTER: Final = 1.1
"""Three beats that are late by no more than that, as requests take time, do not make a lease longer."""


@lru_cache(maxsize=4096)
def natural_order(node: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key: worker-2 comes before worker-10. Different names have different keys."""
    parts = re.split(r"([0-9]+)", node)  # text and digits alternate, so equal places hold equal types
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts)), node


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReadings:
    """Hold the heartbeats that one reading of other nodes' files found."""

    heartbeats: tuple[Heartbeat, ...] = ()  # natural order of nodes
    unread: dict[str, str] = field(default_factory=dict)  # node: why its file gave no heartbeat, as a sentence
    unanswered: frozenset[str] = frozenset()  # nodes in `unread` for a storage error, which proves nothing about them
    returned: frozenset[str] = frozenset()  # nodes whose files were dormant: they may have changed a while ago
    unknown: tuple[str, ...] = ()  # a sentence for each node whose file gave no heartbeat when it was last read
    complete: bool = True  # every file was read by now, in this reading or an earlier one
    round_seconds: float = 0.0  # the time in which each node that is not long silent is read once

    @property
    def nodes(self) -> set[str]:
        """Return the nodes whose files were read."""
        return {heartbeat.node for heartbeat in self.heartbeats} | self.unread.keys()


@dataclass(slots=True)
class SignsOfLife:
    """Hold the changes of one node's heartbeat, as one reader saw them."""

    since: float  # when it changed last, or when the reader began to watch it
    heartbeat: Heartbeat | None = None  # None: its file was never decoded
    changed: bool = False  # since the reader began to watch it

    def note(self, heartbeat: Heartbeat, now: float) -> bool:
        """Note the heartbeat that was read at `now`, and return whether it is a sign of life.

        An earlier state of the file, which storage may show, is not a sign of life.
        """
        known = self.heartbeat
        if heartbeat == known:
            return False
        same_daemon = known is not None and known.incarnation == heartbeat.incarnation
        if known is not None and same_daemon and heartbeat.beat < known.beat:
            return False
        self.heartbeat, self.since, self.changed = heartbeat, now, True
        return True

    @property
    def left(self) -> bool:
        """Return whether the daemon reported its end."""
        return self.heartbeat is not None and self.heartbeat.state == NodeState.LEFT

    def is_alive(self, now: float, lease_seconds: float) -> bool | None:
        """Return whether the node is alive; None if it was not watched for long enough to know."""
        if self.heartbeat is None or self.left or now - self.since >= lease_seconds:
            return False
        return True if self.changed else None


@dataclass(slots=True)
class _Gaps:
    """Hold the largest gaps between two changes, in seconds: in the present window, and in the window before it."""

    largest: float = 0.0
    before: float = 0.0
    count: int = 0

    def add(self, gap: float) -> None:
        if self.count == _GAPS:
            self.before, self.largest, self.count = self.largest, 0.0, 0
        self.largest, self.count = max(self.largest, gap), self.count + 1


@dataclass(slots=True)
class _WatchedNode:
    """Hold the observations of one node."""

    signs: SignsOfLife
    read_at: float
    interrupted: bool = False  # this node read no files for as long as the lease of that node
    gaps: _Gaps = field(default_factory=_Gaps)  # between two changes

    @property
    def largest_gap(self) -> float:
        return max(self.gaps.largest, self.gaps.before)


class Liveness:
    """Decide which nodes are alive, as this node sees them.

    The silence of a node counts only while this node reads heartbeats. After a lease without a reading (this node was
    suspended, or storage did not answer) it watches all nodes anew, as at the start. A write of its own heartbeat is
    its own sign of life.
    """

    def __init__(self, node: str, lease_seconds: float) -> None:
        self.node = node
        self.lease_seconds = lease_seconds
        self._watches: dict[str, _WatchedNode] = {}
        self._complete_at: float | None = None  # when the newest complete reading was made
        self._read_at = float("-inf")  # when the newest reading was made
        self._round_seconds = 0.0  # see `HeartbeatReadings`
        self._returned = frozenset[str]()  # see `HeartbeatReadings`
        self._alive: tuple[float, list[Heartbeat]] | None = None  # at that time: the loop asks several times in a turn

    def wrote(self, heartbeat: Heartbeat, now: float) -> None:
        """Note that this node's own heartbeat was written."""
        self._alive = None
        self._watches[self.node] = _WatchedNode(SignsOfLife(now, heartbeat, changed=True), now)

    def observe(self, reading: HeartbeatReadings, now: float) -> list[str]:
        """Note a reading that was made at `now`; return the nodes that gave a sign of life."""
        if (pause := now - self._read_at) >= self.lease_seconds:
            self._note_pause(pause)
        self._alive, self._read_at, self._round_seconds = None, now, reading.round_seconds
        read = {heartbeat.node: heartbeat for heartbeat in reading.heartbeats}
        nodes = reading.nodes - reading.unanswered - {self.node}
        self._returned = reading.returned
        changed = [node for node in sorted(nodes, key=natural_order) if self._observe(node, read.get(node), now)]
        if reading.complete:
            self._complete_at = now
        return changed

    def lease_of(self, node: str) -> float:
        """Return how many seconds a node may be silent: more than the lease if storage shows its changes late."""
        watch = self._watches.get(node)
        if watch is None or 3 * watch.largest_gap <= _JITTER * self.lease_seconds:
            return self.lease_seconds
        return 3 * min(watch.largest_gap, max(self.lease_seconds, self._round_seconds))

    @property
    def _reads_in_turns(self) -> bool:
        """Return whether there are so many nodes that most of them are read less often than once in a lease."""
        return self._round_seconds > self.lease_seconds

    def fresh(self, node: str, now: float) -> bool:
        """Return whether a node is known to be alive: whether it changed within its lease, and did not leave.

        If nodes are read in long turns, the silence since the last reading of a node says nothing about it, unless this
        node missed its turns.
        """
        watch = self._watches.get(node)
        if watch is None:
            return False
        if self._reads_in_turns and now - watch.read_at < 3 * self._round_seconds:
            now = max(watch.read_at, watch.signs.since)
        return bool(watch.signs.is_alive(now, self.lease_of(node)))

    def fresh_heartbeats(self, now: float) -> list[Heartbeat]:
        """Return the newest heartbeats of the nodes that are alive, in natural order of names, this node among them."""
        if self._alive is None or self._alive[0] != now:
            nodes = sorted(self._watches, key=natural_order)
            alive = [heartbeat for node in nodes if self.fresh(node, now) and (heartbeat := self.heartbeat(node))]
            self._alive = now, alive
        return list(self._alive[1])

    def unheard(self, now: float) -> list[Heartbeat]:
        """Return the newest heartbeats of other nodes of unknown liveness, for example while storage gives errors.

        They may see checkpoints that this node does not see. After ten minutes of silence they are not returned.
        """
        return [
            watch.signs.heartbeat
            for node, watch in self._watches.items()
            if node != self.node and watch.signs.heartbeat is not None and not watch.signs.left
            if self.gone_since(node) is None and not self.fresh(node, now)
            if now - watch.signs.since < LONG_SILENT_SECONDS
        ]

    def remembered(self) -> list[Heartbeat]:
        """Return the newest heartbeats of all nodes that did not leave, however long they have been silent."""
        return [
            watch.signs.heartbeat
            for watch in self._watches.values()
            if watch.signs.heartbeat is not None and not watch.signs.left
        ]

    def heartbeat(self, node: str) -> Heartbeat | None:
        """Return the newest heartbeat of a node, however old it is."""
        watch = self._watches.get(node)
        return watch.signs.heartbeat if watch else None

    def gone_since(self, node: str) -> float | None:
        """Return since when a node is silent, if readings found it silent for a lease; `None` while it may be alive."""
        watch = self._watches.get(node)
        if watch is None or watch.read_at - watch.signs.since < self.lease_of(node):
            return None
        return watch.signs.since

    def lost(self, node: str, incarnation: str | None = None) -> str | None:
        """Return a sentence why a member of a plan will not finish it; `None` while it may.

        `incarnation` is the one that the plan lists. A node of which neither is known is not lost and not fresh: a node
        is listed only if it is known to be alive, and given up only if it is known to be gone.
        """
        heartbeat = self.heartbeat(node)
        if heartbeat is not None and incarnation not in (None, heartbeat.incarnation):
            return f"{node} was restarted"
        if heartbeat is not None and heartbeat.state == NodeState.LEFT:
            return f"{node} left"
        if self.gone_since(node) is not None:
            return f"{node} was silent for its lease of {self.lease_of(node):.1f} seconds"
        return None

    def ready_to_propose(self, now: float) -> bool:
        """Return whether this node may propose: it knows enough of the other nodes, and they can see its heartbeat.

        It must have read the files of all nodes. Since then each of these nodes must have changed its file once, or
        left, or been silent for a lease. A node that is alone may propose at once.
        """
        return (
            self._complete_at is not None
            and self.fresh(self.node, now)
            and all(map(partial(self._is_known, now), self._watches))
        )

    def _note_pause(self, pause: float) -> None:
        """Note that this node has read no files for a lease, so that nobody's silence in this time counts.

        A node that is read in long turns is not watched anew after each pause: it was not read in the pause anyway.
        """
        for node, watch in self._watches.items():
            if not self._reads_in_turns or pause >= self._round_seconds:
                watch.interrupted |= pause >= self.lease_of(node)
            elif self.gone_since(node) is None:
                watch.signs.since += pause

    def _is_known(self, now: float, node: str) -> bool:
        """Return whether it is known if a node is alive."""
        signs = self._watches[node].signs
        return signs.changed or signs.left or now - signs.since >= self.lease_of(node)

    def _observe(self, node: str, heartbeat: Heartbeat | None, now: float) -> bool:
        """Note the reading of one node, and return whether it is a sign of life."""
        watch = self._watches.get(node)
        if watch is not None and self.gone_since(node) is not None and heartbeat in (None, watch.signs.heartbeat):
            watch.read_at = now  # it is still gone, however long there was no reading
            return False
        if watch is None or watch.interrupted:
            self._watches[node] = self._begin(watch, heartbeat, now, returned=node in self._returned)
            return self._watches[node].signs.changed
        unchanged_until, watch.read_at = watch.read_at, now
        signs, before = watch.signs, replace(watch.signs)
        if heartbeat is None or not signs.note(heartbeat, now):
            return False
        same_daemon = before.heartbeat is not None and before.heartbeat.incarnation == heartbeat.incarnation
        if same_daemon and before.changed:
            # Only a reading without a change proves silence, and the lease leaves room for intervals of a third of it
            # between readings. Longer ones are slow storage, unless files are read in long turns.
            unread = now - unchanged_until
            lease = self.lease_seconds
            free = max(0.0, unread - lease) if self._reads_in_turns else min(unread, lease / 3)
            watch.gaps.add(now - before.since - free)
        return True

    def _begin(
        self, before: _WatchedNode | None, heartbeat: Heartbeat | None, now: float, *, returned: bool
    ) -> _WatchedNode:
        """Begin to watch a node, for the first time or after a lease without a reading.

        A change since the last reading may have happened long ago, so it is not a sign of life. But a file that a
        complete reading did not find a moment ago is new.
        """
        if before is not None:
            return _WatchedNode(SignsOfLife(now, heartbeat or before.signs.heartbeat), now, gaps=before.gaps)
        is_new = self._complete_at is not None and now - self._complete_at < self.lease_seconds
        return _WatchedNode(SignsOfLife(now, heartbeat, changed=is_new and heartbeat is not None and not returned), now)
