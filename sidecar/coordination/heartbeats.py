"""Who is there: every node writes its own heartbeat file, and judges the others by whether theirs change.

`Heartbeats` reads and writes the files, in the daemon's I/O thread. `Liveness` is pure: it is told what was read and
when, on this node's own clock, and says who is alive. No two machines' clocks are ever compared.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final
from urllib.parse import quote, unquote

from sidecar.bounded_calls import Calls, HangingError, call_directly
from sidecar.codec import dumps, loads
from sidecar.coordination.dormant_heartbeats import DORMANT_SECONDS, DormantHeartbeats
from sidecar.coordination.storage import Storage
from sidecar.errors import NodeNameTakenError, RecordError, StorageError
from sidecar.records import Heartbeat
from sidecar.states import NodeState

FOLDER: Final = "members"

READS_PER_SECOND: Final = 12.0
"""With what else it does, a node among 64 then asks less than 20 things of storage in a second."""

_READS_AT_ONCE_SECONDS: Final = 2.0
"""So many seconds' worth of reads may be made at once: a beat's."""

_SILENT_SECONDS: Final = 60.0
_SHARE_OF_SILENT: Final = 4
"""Who has been silent for that long shares one of so many reads: the dead must not take turns from the living."""

_LONG_SILENT_SECONDS: Final = 600.0
_RARELY_SECONDS: Final = 30.0
"""And who has been for that long is read so often, however few others there are."""

_UNANSWERED_AT_ONCE: Final = 3
"""After so many files that cannot be read a look ends: each may take as long as the storage's own timeout."""

_GAPS: Final = 300
"""The largest of so many gaps, and of as many before, makes the lease: ten minutes of beats. One bad day passes."""

_BEATS_OF_PREDECESSOR: Final = 3
"""So many beats of the incarnation found at the start prove it alive: it left one, and may have died writing one."""

_BEATS_OF_RIVAL: Final = 5
"""More than the above, so that who came later is gone before the earlier one asks which of the two should go."""


@lru_cache(maxsize=4096)
def natural_order(node: str) -> tuple[tuple[str | int, ...], str]:
    """Sort key that counts as people do: worker-2 before worker-10. Different names have different keys."""
    parts = re.split(r"([0-9]+)", node)  # text and digits alternate, so equal places hold equal types
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts)), node


@lru_cache(maxsize=4096)
def heartbeat_path(node: str) -> str:
    """Where a node's heartbeat stands; any name makes a safe file name."""
    return f"{FOLDER}/{quote(node, safe='-_.+=,@:', errors='surrogatepass')}.json"


@dataclass(frozen=True, slots=True)
class HeartbeatReadings:
    """What one look at members' files found."""

    heartbeats: tuple[Heartbeat, ...] = ()  # natural order of nodes
    unread: dict[str, str] = field(default_factory=dict)  # node: why its file gave no heartbeat, as a sentence
    unanswered: frozenset[str] = frozenset()  # unread as it could not be read: that says nothing about the node
    returned: frozenset[str] = frozenset()  # nodes whose files were dormant: they may have changed a while ago
    unknown: tuple[str, ...] = ()  # why, of every member whose file gave no heartbeat when it was last read
    complete: bool = True  # every member has been looked for by now, if not in this look
    round_seconds: float = 0.0  # in which each member that is not long silent is read once

    @property
    def nodes(self) -> set[str]:
        """Whose files were looked at."""
        return {heartbeat.node for heartbeat in self.heartbeats} | self.unread.keys()


@dataclass(slots=True)
class _HeartbeatFile:
    """What is known of a member's file, to choose which are read next."""

    changed_at: float  # or when its name was first seen
    read_at: float = float("-inf")
    beat: tuple[str, int] | None = None  # incarnation and beat
    problem: str | None = None  # why it gave no heartbeat, as a sentence
    unanswered: bool = False  # as storage gave an error
    returned: bool = False  # it was dormant, and was not read since

    @property
    def silent(self) -> bool:
        """Whether it has not changed for a while."""
        return self.read_at - self.changed_at > _SILENT_SECONDS

    def is_due(self, now: float) -> bool:
        """Whether it may be read again."""
        return self.read_at - self.changed_at <= _LONG_SILENT_SECONDS or now - self.read_at >= _RARELY_SECONDS


class Heartbeats:
    """The heartbeat files of one run, of which this daemon writes one.

    Others' are read in turn, at most `reads_per_second` of them: with few nodes all at every look, with many each as
    often as that allows. So what a node asks of storage does not grow with their number; the lease does, since it
    follows the gaps between changes that are seen.
    """

    def __init__(
        self,
        storage: Storage,
        run: str,
        reads_per_second: float = READS_PER_SECOND,
        dormant_seconds: float = DORMANT_SECONDS,
        calls: Calls = call_directly,
    ) -> None:
        self.storage = storage
        self.run = run
        self._calls = calls
        self._reads_per_second = reads_per_second
        self._saved_reads = reads_per_second  # of the time that went by without any
        self._looked_at: float | None = None
        self._seen: dict[str, _HeartbeatFile] = {}
        self._own: str | None = None
        self._written = False
        self._predecessor: str | None = None  # the incarnation found under this node's name at the start
        self._dormant = DormantHeartbeats(storage, FOLDER, dormant_seconds, reads_per_second)
        self._others: dict[str, set[int]] = {}  # other incarnations under this node's name: the beats they wrote

    def write(self, heartbeat: Heartbeat) -> None:
        """Put this node's heartbeat where the others look; the beat before it must have been this daemon's own.

        Raises `NodeNameTakenError` if another live daemon writes there too and this one came later, `StorageError` if
        storage does not answer.
        """
        self._own = heartbeat.node
        self._check_name(heartbeat)
        self.storage.replace(heartbeat_path(heartbeat.node), dumps(heartbeat))
        self._written = True

    def look(self, now: float) -> HeartbeatReadings:
        """Read the files of other members whose turn it is; raises `StorageError` if the folder cannot be listed.

        Those never read come first, the newest of them before all, then those that were read longest ago. Who has long
        been silent is read rarely, and whose file is dormant not at all until it changes.
        """
        listed = self._names()
        for path in self._dormant.look(None if not self._written else heartbeat_path(str(self._own)), now):
            self._seen[_node_of(path)] = _HeartbeatFile(now, returned=True)
        for node in listed:
            if node not in self._seen and heartbeat_path(node) not in self._dormant:
                self._seen[node] = _HeartbeatFile(now)
        reading = self._read_each(self._whose_turn(now), _UNANSWERED_AT_ONCE)
        returned = frozenset(node for node in reading.nodes if self._seen[node].returned)
        self._note(reading, now, frozenset(listed))
        self._dormant.clean(now, self._said)
        others = [seen for node, seen in self._seen.items() if node != self._own]
        often = sum(not seen.silent for seen in others)
        return replace(
            reading,
            returned=returned,
            unknown=tuple(seen.problem for seen in others if seen.problem is not None),
            complete=all(seen.read_at > float("-inf") for seen in others),
            round_seconds=often / (self._reads_per_second * (1 - 1 / _SHARE_OF_SILENT)),
        )

    def storage_time(self, now: float) -> float | None:
        """The time of the storage's clock, None while it is not known."""
        return self._dormant.storage_time(now)

    def _note(self, reading: HeartbeatReadings, now: float, listed: frozenset[str]) -> None:
        for heartbeat in reading.heartbeats:
            seen, beat = self._seen[heartbeat.node], (heartbeat.incarnation, heartbeat.beat)
            if seen.beat != beat:
                seen.beat, seen.changed_at = beat, now
        for node in reading.nodes:
            seen = self._seen[node]
            seen.read_at, seen.returned, seen.unanswered = now, False, node in reading.unanswered
            seen.problem = reading.unread.get(node) if node in listed else None
            if seen.silent and (node not in listed or heartbeat_path(node) in self._dormant):
                del self._seen[node]  # it was removed, or need not be read any more

    def _said(self, path: str) -> tuple[object, bool]:
        """What a heartbeat file says, and whether its node left."""
        try:
            found = self._read(_node_of(path))
        except RecordError as error:
            return str(error), False
        return found, found.state == NodeState.LEFT

    def _whose_turn(self, now: float) -> list[str]:
        since = now - self._looked_at if self._looked_at is not None else float("inf")
        self._looked_at = now
        budget = min(_READS_AT_ONCE_SECONDS, since) * self._reads_per_second + self._saved_reads
        budget = min(budget, _READS_AT_ONCE_SECONDS * self._reads_per_second)

        others = sorted((node for node in self._seen if node != self._own), key=self._order)
        failing = [node for node in others if self._seen[node].unanswered][:_UNANSWERED_AT_ONCE]
        others = [node for node in others if not self._seen[node].unanswered]
        often = [node for node in others if not self._seen[node].silent]
        rarely = [node for node in others if self._seen[node].silent and self._seen[node].is_due(now)]
        for_silent = max(int(budget) // _SHARE_OF_SILENT, int(budget) - len(often))
        chosen = [*rarely[:for_silent], *often][: max(0, int(budget) - len(failing))] + failing  # they may take long
        self._saved_reads = budget - len(chosen)
        return chosen

    def _order(self, node: str) -> tuple[float, float, str]:
        return self._seen[node].read_at, -self._dormant.written_at(heartbeat_path(node)), node

    def _names(self) -> list[str]:
        names = self.storage.names(FOLDER)
        return sorted((unquote(name[:-5]) for name in names if name.endswith(".json")), key=natural_order)

    def read_all(self) -> HeartbeatReadings:
        """Read the files of all members; raises `StorageError` if the folder cannot be listed."""
        return replace(self.read(self._names()), complete=True)

    def read(self, nodes: Iterable[str]) -> HeartbeatReadings:
        """Read these members' files. One that is absent, torn, foreign or not to be read is reported, and stops nobody.

        Of a file that storage gives an error for, nothing is concluded: its node may live.
        """
        return self._read_each(nodes, sys.maxsize)

    def _read_each(self, nodes: Iterable[str], unanswered_at_once: int) -> HeartbeatReadings:
        heartbeats, unread, unanswered = [], dict[str, str](), set[str]()
        for node in dict.fromkeys(nodes):
            try:
                heartbeats.append(self._read(node))
            except RecordError as error:
                unread[node] = str(error)
            except StorageError as error:
                unread[node] = str(error)
                unanswered.add(node)
                if len(unanswered) == unanswered_at_once:
                    break
        in_order = tuple(sorted(heartbeats, key=lambda each: natural_order(each.node)))
        return HeartbeatReadings(in_order, unread, frozenset(unanswered), complete=False)

    def _read(self, node: str) -> Heartbeat:
        path = heartbeat_path(node)
        try:
            found = self._calls(path, partial(self.storage.read, path))
        except HangingError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        if found is None:
            raise RecordError(f"{path} is absent")
        try:
            heartbeat = loads(Heartbeat, found)
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from error
        if (heartbeat.run, heartbeat.node) != (self.run, node):
            raise RecordError(f"{path} is a heartbeat of node {heartbeat.node} in run {heartbeat.run}, not of this run")
        return heartbeat

    def _check_name(self, mine: Heartbeat) -> None:
        """Look at what stands under this node's name before writing there.

        Who finds there, again and again, the incarnation that was there before its own first beat came later, and goes.
        Two that started at the same moment each take the other for the later one: then the greater incarnation goes.
        """
        try:
            found = self._read(mine.node)
        except RecordError:
            return
        if found.incarnation == mine.incarnation:
            return
        if not self._written:
            self._predecessor = found.incarnation
        beats = self._others.setdefault(found.incarnation, set())
        beats.add(found.beat)
        came_later = found.incarnation == self._predecessor
        if (came_later and len(beats) >= _BEATS_OF_PREDECESSOR) or (
            mine.incarnation > found.incarnation and len(beats) >= _BEATS_OF_RIVAL
        ):
            raise NodeNameTakenError(
                f"another live daemon (incarnation {found.incarnation}) writes heartbeats as node {mine.node!r}: "
                "stop one of the two, or give this one a name of its own with --node"
            )


def _node_of(path: str) -> str:
    return unquote(path.rpartition("/")[2].removesuffix(".json"))


@dataclass(slots=True)
class _Gaps:
    """Of the newest seconds between two changes the largest: of a window that fills, and of the one before it."""

    largest: float = 0.0
    before: float = 0.0
    count: int = 0

    def add(self, gap: float) -> None:
        if self.count == _GAPS:
            self.before, self.largest, self.count = self.largest, 0.0, 0
        self.largest, self.count = max(self.largest, gap), self.count + 1


@dataclass(slots=True)
class _NodeLiveness:
    """What this node saw of one member, in seconds on its own clock."""

    looked_at: float
    silent_since: float  # its last change, or the beginning of this watch
    heartbeat: Heartbeat | None = None
    changed: bool = False  # in this watch
    interrupted: bool = False  # this node looked at nobody for as long as that one's lease
    gaps: _Gaps = field(default_factory=_Gaps)  # between two changes

    @property
    def largest_gap(self) -> float:
        return max(self.gaps.largest, self.gaps.before)


def is_alive(heartbeat: Heartbeat, *, changed: bool, silent_seconds: float, lease_seconds: float) -> bool | None:
    """Return whether a node is alive; None if it was not watched for long enough to know.

    `changed`: its heartbeat has changed while it was watched. `silent_seconds`: since the last change, or since it is
    watched. That a heartbeat is there says nothing: the change of it is the sign of life.
    """
    if heartbeat.state == NodeState.LEFT or silent_seconds >= lease_seconds:
        return False
    return True if changed else None


class Liveness:
    """Who is alive, as this node sees it. Pure: no I/O, and time is an argument, in seconds of `Clock.now`.

    That a heartbeat stands there says nothing; its *change*, seen here, is the sign of life. So silence counts only
    while this node looks: after a lease in which it looked at nobody (suspended, or storage did not answer) its watches
    begin anew, as at the start. This node's own sign of life is that it could write.
    """

    def __init__(self, node: str, lease_seconds: float) -> None:
        self.node = node
        self.lease_seconds = lease_seconds
        self._watches: dict[str, _NodeLiveness] = {}
        self._looked_at_all: float | None = None  # when it did last
        self._looked_at = float("-inf")  # at anybody
        self._round = 0.0  # seconds in which all are looked at
        self._returned = frozenset[str]()  # in the newest look
        self._there: tuple[float, list[Heartbeat]] | None = None  # at that time; a turn of the loop asks several times

    def wrote(self, heartbeat: Heartbeat, now: float) -> None:
        """Note that this node's own heartbeat was written."""
        self._there = None
        self._watches[self.node] = _NodeLiveness(looked_at=now, silent_since=now, heartbeat=heartbeat, changed=True)

    def observe(self, reading: HeartbeatReadings, now: float) -> list[str]:
        """Note what a look at the others found at `now`; returns who showed a sign of life."""
        if (pause := now - self._looked_at) >= self.lease_seconds:
            for node, watch in self._watches.items():
                watch.interrupted |= pause >= self.lease_of(node)
        self._there, self._looked_at, self._round = None, now, reading.round_seconds
        found = {heartbeat.node: heartbeat for heartbeat in reading.heartbeats}
        nodes = reading.nodes - reading.unanswered - {self.node}
        self._returned = reading.returned
        alive = [node for node in sorted(nodes, key=natural_order) if self._observe(node, found.get(node), now)]
        if reading.complete:
            self._looked_at_all = now
        return alive

    def lease_of(self, node: str) -> float:
        """How many seconds a node may be silent: longer if storage shows its changes late, but within reason."""
        watch = self._watches.get(node)
        if watch is None or 3 * watch.largest_gap <= self.lease_seconds:
            return self.lease_seconds
        return 3 * min(watch.largest_gap, max(self.lease_seconds, self._round))

    def fresh(self, node: str, now: float) -> bool:
        """Return whether a node is alive: it has changed within its lease and did not say that it left."""
        watch = self._watches.get(node)
        if watch is None or watch.heartbeat is None:
            return False
        silent, lease = now - watch.silent_since, self.lease_of(node)
        return bool(is_alive(watch.heartbeat, changed=watch.changed, silent_seconds=silent, lease_seconds=lease))

    def fresh_heartbeats(self, now: float) -> list[Heartbeat]:
        """What the nodes that are there said last, in natural order of their names; this node is among them."""
        if self._there is None or self._there[0] != now:
            nodes = sorted(self._watches, key=natural_order)
            there = [heartbeat for node in nodes if self.fresh(node, now) and (heartbeat := self.heartbeat(node))]
            self._there = now, there
        return list(self._there[1])

    def unheard(self, now: float) -> list[Heartbeat]:
        """Return what other nodes said last of which it is not known whether they are there: storage gives errors, say.

        They may live, and see what this node does not. Nobody is waited for longer than ten minutes.
        """
        return [
            watch.heartbeat
            for node, watch in self._watches.items()
            if node != self.node and watch.heartbeat is not None and watch.heartbeat.state != NodeState.LEFT
            if self.gone_since(node) is None and not self.fresh(node, now)
            if now - watch.silent_since < _LONG_SILENT_SECONDS
        ]

    def heartbeat(self, node: str) -> Heartbeat | None:
        """Return what the node said last, however long ago."""
        watch = self._watches.get(node)
        return watch.heartbeat if watch else None

    def gone_since(self, node: str) -> float | None:
        """When the silence began that has lasted a lease of looking; None while there is hope, or nobody looked."""
        watch = self._watches.get(node)
        if watch is None or watch.looked_at - watch.silent_since < self.lease_of(node):
            return None
        return watch.silent_since

    def lost(self, node: str, incarnation: str | None = None) -> str | None:
        """Why a member of a plan will not finish it, as a sentence; None while it may.

        `incarnation` is the one that the plan counted on. This is not the opposite of `fresh`: to be listed a node must
        be known to be there, to be given up it must be known to be gone.
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
        """Whether this node knows enough of the others, and can itself be seen by them, to say what is done next.

        It must have looked at all members, and each whose file it saw must since have changed once, have left, or have
        been silent for a lease. So a node that is alone is ready at once.
        """
        return (
            self._looked_at_all is not None
            and self.fresh(self.node, now)
            and all(map(partial(self._known, now), self._watches))
        )

    def _known(self, now: float, node: str) -> bool:
        watch = self._watches[node]
        left = watch.heartbeat is not None and watch.heartbeat.state == NodeState.LEFT
        return watch.changed or left or now - watch.silent_since >= self.lease_of(node)

    def _observe(self, node: str, found: Heartbeat | None, now: float) -> bool:
        watch = self._watches.get(node)
        if watch is not None and self.gone_since(node) is not None and found in (None, watch.heartbeat):
            watch.looked_at = now  # as gone as before, however long nobody looked
            return False
        if watch is None or watch.interrupted:
            self._watches[node] = self._begin(watch, found, now, returned=node in self._returned)
            return self._watches[node].changed
        watch.looked_at = now
        known = watch.heartbeat
        if found is None or found == known:
            return False
        same_life = known is not None and known.incarnation == found.incarnation
        if known is not None and same_life and found.beat < known.beat:
            return False  # storage showed the past
        if same_life and watch.changed:
            watch.gaps.add(now - watch.silent_since)
        watch.heartbeat, watch.silent_since, watch.changed = found, now, True
        return True

    def _begin(
        self, before: _NodeLiveness | None, found: Heartbeat | None, now: float, *, returned: bool
    ) -> _NodeLiveness:
        """Begin to watch a node, for the first time or after not having looked for a lease.

        What changed while nobody looked may have changed long ago: it says nothing of now. But a file that a look at
        all members did not find a moment ago is new.
        """
        if before is not None:
            return _NodeLiveness(now, now, heartbeat=found or before.heartbeat, gaps=before.gaps)
        newcomer = self._looked_at_all is not None and now - self._looked_at_all < self.lease_seconds
        return _NodeLiveness(now, now, heartbeat=found, changed=newcomer and found is not None and not returned)
