"""Read and write heartbeat files. Every node writes its own, and reads those of the others in turn.

The daemon's storage thread calls this module. `liveness` decides which nodes are alive.

`dormant_heartbeats` knows which files were not written for long: a start skips them. As soon as the time of such a file
changes, it is read before all others.

On a filesystem with so many nodes that one reading does not cover them, each node tells its beats by the name of a
file, too (`beat_names`). One listing then shows which nodes are alive, and files are read whose content changed, or
whose node is not seen to be alive.
"""

import contextlib
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, takewhile
from typing import Final, TypeVar
from urllib.parse import unquote

from sidecar.coordination.beat_names import (
    UNCHECKED_BEATS,
    ListedBeat,
    ListedBeats,
    beat_name,
    content,
    file_stem,
    names_of,
    node_of,
)
from sidecar.coordination.dormant_heartbeats import DORMANT_SECONDS, DormantHeartbeats
from sidecar.coordination.liveness import LONG_SILENT_SECONDS, HeartbeatReadings, SignsOfLife, natural_order
from sidecar.coordination.storage import Storage, Surveyed
from sidecar.errors import NodeNameTakenError, RecordError, StorageError
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.record_limits import HEARTBEAT
from sidecar.protocol.states import NodeState
from sidecar.system.bounded_calls import Calls, HangingError, call_directly

N = TypeVar("N")

FOLDER: Final = "members"

READS_PER_SECOND: Final = 12.0
"""The limit of reads. With all its other requests, a node among 64 then sends less than 20 requests in a second."""

_READS_AT_ONCE_SECONDS: Final = 2.0
"""The reads of so many seconds may be made at once: those of one beat."""

_DISTANCE_FACTOR: Final = 3
"""A node watches the nodes before it at distances 1, 3, 9, 27 …, so that a dead row of neighbours is noticed, too."""

_SHARE_OF_WATCHED: Final = 2
"""Watched nodes get at most one of that many reads, so that the other nodes have their turns."""

_SILENT_SECONDS: Final = 60.0
_SHARE_OF_SILENT: Final = 4
"""Nodes that have been silent for `_SILENT_SECONDS` share one of that many reads, so that live nodes come first."""

_RARELY_SECONDS: Final = 30.0
"""The seconds between two reads of a node that was silent for `LONG_SILENT_SECONDS`, however few others there are."""

_UNANSWERED_AT_ONCE: Final = 3
"""A reading ends after that many unreadable files: each may take as long as the storage's own timeout."""

_BEATS_OF_PREDECESSOR: Final = 3
"""Beats that prove the incarnation found at the start alive: it left one, and may have died while it wrote another."""

_BEATS_OF_RIVAL: Final = 5
"""More than `_BEATS_OF_PREDECESSOR`, so that the later daemon ends before the earlier one decides which should end."""

_FIRST_READERS: Final = 4
"""The first of the nodes whose beats are seen read all files soon, since one of them proposes the first plan."""

_FACTOR_OF_FIRST: Final = 10
"""The first readers make that many times the reads of others, until each file was read."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Bound the reads of other nodes' files."""

    per_second: float = READS_PER_SECOND  # the most reads
    # The seconds without a write after which a file is read only once it changes
    dormant_seconds: float = DORMANT_SECONDS
    # The seconds after a sign of life in which a file is read only if its content changed: half a lease
    heard_seconds: float = 5.0


def heartbeat_path(node: str) -> str:
    """Return the path of a node's heartbeat file."""
    return f"{FOLDER}/{file_stem(node)}.json"


@dataclass(slots=True, kw_only=True)
class _HeartbeatFile:
    """Hold this node's knowledge of one heartbeat file, which decides when it is read next."""

    signs: SignsOfLife
    read_at: float = float("-inf")
    problem: str | None = None  # why it gave no heartbeat, as a sentence
    unanswered: bool = False  # the last read ended with an error of storage
    returned: bool = False  # it was dormant, and was not read since
    content_of: tuple[str, int] = "", -1  # the newest incarnation and beat of a content that was read

    @property
    def silent(self) -> bool:
        """Return whether the file has not changed for a while."""
        return self.read_at - self.signs.since > _SILENT_SECONDS

    def is_due(self, now: float, beat: ListedBeat | None) -> bool:
        """Return whether the file of a silent node may be read again. `beat`: what its name tells, if it has one.

        As long as that name does not change, either, the file is read rarely.
        """
        often = self.read_at - self.signs.since <= LONG_SILENT_SECONDS and not (beat and self.is_of(beat, beat.beat))
        return often or now - self.read_at >= _RARELY_SECONDS

    def is_of(self, listed: ListedBeat, beat: int) -> bool:
        """Return whether a content of the listed daemon was read that is as new as that of a beat."""
        return self.content_of[0] == listed.incarnation and self.content_of[1] >= beat


class Heartbeats:
    """Read the heartbeat files of one run, and write this daemon's own.

    At most `reads.per_second` of the other files are read. With few nodes each reading covers all files. With many
    nodes the names of their beats tell which are alive. A reading then covers the files whose content changed, and
    those of nodes that give no such sign: first of the nodes that this one watches, then the others in turn. So the
    load on storage does not grow with the number of nodes. Each node is watched by several others, and any of them
    fails the plan of a node that is gone, so that the time until that is noticed does not grow, either.
    """

    def __init__(
        self,
        storage: Storage,
        run: str,
        reads: ReadLimits = ReadLimits(),
        calls: Calls = call_directly,
    ) -> None:
        self.storage = storage
        self.run = run
        self._calls = calls
        self._reads_per_second = reads.per_second
        self._saved_reads = reads.per_second  # reads that were allowed until now and not made
        self._saved_for_watched = 0.0  # those among them that watched nodes may have
        self._last_read_at: float | None = None
        self._files: dict[str, _HeartbeatFile] = {}
        self._own: str | None = None
        self._written = b""  # what this node's file holds by the newest write
        self._survey: Mapping[str, Surveyed] | None = None  # None: storage makes none
        self._beats = ListedBeats(reads.heard_seconds)
        self._predecessor: str | None = None  # the incarnation found under this node's name at the start
        self._dormant = DormantHeartbeats(storage, FOLDER, reads.dormant_seconds, reads.per_second)
        self._others: dict[str, set[int]] = {}  # other incarnations under this node's name: the beats they wrote

    def survey(self) -> bool:
        """List the files if that tells whose content changed, and return whether this node's is as it was written.

        `write` and `read_due` then need no listing, and read only what changed.
        """
        self._survey, self._beats.listing = self.storage.survey(FOLDER), None
        if self._survey is not None:
            return bool(self._written) and self._surveyed(heartbeat_path(str(self._own))) == self._written
        # The first listing follows the first heartbeat: of two nodes that start at once, one sees the other
        if self._beats.many:
            with contextlib.suppress(StorageError):  # `read_due` lists again, and raises it
                self._beats.listing = self.storage.names(FOLDER)
        return self._stands

    @property
    def _own_names(self) -> list[str]:
        """Return the names that tell beats of this node, in the listing of `survey`."""
        return [] if self._own is None else names_of(self._own, self._beats.listing or ())

    @property
    def _stands(self) -> bool:
        """Return whether this listing has the name of this node's newest beat, and no other one of this node."""
        return bool(self._written) and self._own_names == [self._beats.own.name]

    def _surveyed(self, path: str) -> bytes | None:
        """Return the content of a file that did not change; None if that is unknown."""
        found = (self._survey or {}).get(path.rpartition("/")[2])
        return None if found is None else found.content

    def written(self) -> dict[str, float]:
        """Return when each node's file was written, by the storage's clock; nothing if `survey` does not tell it."""
        return {node_of(name): found.modified for name, found in (self._survey or {}).items()}

    def write(self, heartbeat: Heartbeat) -> None:
        """Write this node's heartbeat, after a check that no other daemon writes under its name.

        Raises `NodeNameTakenError` if another live daemon writes there too and this one came later, `StorageError` if
        storage does not answer.
        """
        self._own = heartbeat.node
        if self._stands and self._beats.own.unchecked < UNCHECKED_BEATS:
            self._beats.own.unchecked += 1
        else:
            self._beats.own.unchecked = 0 if self._check_name(heartbeat) else UNCHECKED_BEATS
        written = dumps(heartbeat)
        self.storage.replace(heartbeat_path(heartbeat.node), written)
        self._written = written
        if self._survey is None and self._beats.many:
            self._tell_by_name(heartbeat)

    def _tell_by_name(self, heartbeat: Heartbeat) -> None:
        """Let the name of a file tell this beat, after the content was written. Without it others read the content."""
        if self._beats.own.shown is None or self._beats.own.shown[0] != content(heartbeat):
            self._beats.own.shown = content(heartbeat), heartbeat.beat
        name = beat_name(heartbeat, self._beats.own.shown[1])
        former = list(dict.fromkeys([*([self._beats.own.name] if self._beats.own.name else []), *self._own_names]))
        self._beats.own.name = None
        if name is None:
            return
        with contextlib.suppress(StorageError):
            for other in former[1:]:
                self.storage.remove(f"{FOLDER}/{other}")
            if not former or not self.storage.rename(f"{FOLDER}/{former[0]}", name):
                self.storage.replace(f"{FOLDER}/{name}", b"")
            self._beats.own.name = name

    def read_due(self, now: float, attended: Iterable[str] = ()) -> HeartbeatReadings:
        """Read the files of other nodes that are due. Raises `StorageError` if the folder cannot be listed.

        Files that were never read come first, the newest of them before the others. Then come the files of watched and
        of `attended` nodes, and then those that were read longest ago. A file that has been silent for long is read
        rarely, and a dormant one only after it changed.
        """
        names = self._names()
        listed = _nodes_in(names)
        times = None if self._survey is None else {name: found.modified for name, found in self._survey.items()}
        own, unheard = heartbeat_path(str(self._own)) if self._written else None, None
        moved = self._beats.update(names if self._survey is None else (), now)
        if self._beats.many:
            unheard = partial(self._without_heard, names, now)
        active = [node for node in moved if self._dormant.wake(heartbeat_path(node))]
        active += map(node_of, self._dormant.update(own, now, times, unheard))
        for node in active:
            self._files[node] = _HeartbeatFile(signs=SignsOfLife(now), returned=True)
        for node in listed:
            if node not in self._files and heartbeat_path(node) not in self._dormant:
                self._files[node] = _HeartbeatFile(signs=SignsOfLife(now))
        self._beats.many = self._survey is None and len(self._files.keys() - {self._own}) > self._most_at_once
        heard = self._hear(now)
        reading = self._read_each(self._due_nodes(now, attended), _UNANSWERED_AT_ONCE)
        returned = frozenset(node for node in reading.nodes if self._files[node].returned)
        self._note(reading, now, frozenset(listed))
        self._dormant.clean(now, self._content)
        others = {node: file for node, file in self._files.items() if node != self._own}
        often = sum(not file.silent for node, file in others.items() if node not in self._beats.heard)
        watched = len(watched_nodes(range(often + 1), often)) if often > self._most_at_once else 0
        first = min(watched / _READS_AT_ONCE_SECONDS, self._reads_per_second / _SHARE_OF_WATCHED)
        in_turn = self._reads_per_second * (1 - 1 / _SHARE_OF_SILENT) - first
        return replace(
            reading,
            heartbeats=_newest((*heard, *reading.heartbeats), besides=reading.unread),
            returned=returned,
            unknown=tuple(file.problem for file in others.values() if file.problem is not None),
            complete=all(file.read_at > float("-inf") for file in others.values()),
            round_seconds=(often - watched) / in_turn,
        )

    def storage_time(self, now: float) -> float | None:
        """Return the time of the storage's clock, or None while it is not known."""
        return self._dormant.storage_time(now)

    def _note(self, reading: HeartbeatReadings, now: float, listed: frozenset[str]) -> None:
        """Remember the results of a reading, and forget silent files that were removed or are dormant."""
        for heartbeat in reading.heartbeats:
            file = self._files[heartbeat.node]
            file.signs.note(heartbeat, now)
            incarnation, beat = file.content_of
            beat = max(beat, heartbeat.beat) if incarnation == heartbeat.incarnation else heartbeat.beat
            file.content_of = heartbeat.incarnation, beat
        for node in reading.nodes:
            file = self._files[node]
            file.read_at, file.returned, file.unanswered = now, False, node in reading.unanswered
            file.problem = reading.unread.get(node) if node in listed else None
            if file.silent and (node not in listed or heartbeat_path(node) in self._dormant):
                del self._files[node]  # it was removed, or need not be read any more

    def _hear(self, now: float) -> list[Heartbeat]:
        """Return the heartbeats of nodes whose names of beats counted on, and note which of them need not be read.

        A beat that was listed is that of a content as old or newer than the known one. A file is read again if the
        name tells that its content changed after it was read, or does not count on any more.
        """
        told, heard = list[Heartbeat](), set[str]()
        recent = set(self._beats.moved_since(now - self._beats.heard_seconds)) if self._beats.many else set[str]()
        for node in recent & self._files.keys() - {self._own}:
            file, beat = self._files[node], self._beats.newest[node]
            known = file.signs.heartbeat
            if known is None or known.incarnation != beat.incarnation or file.unanswered:
                continue
            if (found := beat.applied_to(known)) is not None:
                file.signs.note(found, now)
                told.append(found)
            if file.is_of(beat, beat.changed):
                heard.add(node)
        self._beats.heard = frozenset(heard)
        return told

    def _without_heard(self, names: Iterable[str], now: float) -> list[str]:
        """Return the names of a listing without those of other nodes that are seen to be alive."""
        heard = set(self._beats.moved_since(now - self._beats.heard_seconds)) - {self._own}
        return [name for name in names if node_of(name) not in heard]

    def _content(self, path: str) -> tuple[object, bool]:
        """Return the content of a heartbeat file, or why it has none, and whether its node left."""
        try:
            found = self._read(node_of(path))
        except RecordError as error:
            return str(error), False
        return found, found.state == NodeState.LEFT

    @property
    def _most_at_once(self) -> int:
        """Return the most files that one reading covers."""
        return int(_READS_AT_ONCE_SECONDS * self._reads_per_second)

    def _due_nodes(self, now: float, attended: Iterable[str]) -> list[str]:
        """Return the nodes whose files are read now, within the allowed number of reads."""
        since = now - self._last_read_at if self._last_read_at is not None else float("inf")
        self._last_read_at = now
        per_second = self._reads_per_second * (_FACTOR_OF_FIRST if self._reads_first(now) else 1)
        allowed = min(_READS_AT_ONCE_SECONDS, since) * per_second
        most = _READS_AT_ONCE_SECONDS * per_second
        budget = min(allowed + self._saved_reads, most)
        for_watched = min(allowed / _SHARE_OF_WATCHED + self._saved_for_watched, most / _SHARE_OF_WATCHED)

        others = sorted((node for node in self._files if node != self._own), key=self._order)
        failing = [node for node in others if self._files[node].unanswered][:_UNANSWERED_AT_ONCE]
        others = [node for node in others if not self._files[node].unanswered]
        ring = [node for node in others if not self._files[node].silent]
        often = [node for node in ring if node not in self._beats.heard or node in attended]
        silent = ((node, self._files[node]) for node in others if self._files[node].silent)
        rarely = [node for node, file in silent if file.is_due(now, self._beats.newest.get(node))]
        for_silent = max(int(budget) // _SHARE_OF_SILENT, int(budget) - len(often))
        first = self._before_others(ring, often, attended)[: int(for_watched)]
        chosen = list(dict.fromkeys([*first, *rarely[:for_silent], *often]))
        chosen = chosen[: max(0, int(budget) - len(failing))] + failing  # they may take long
        self._saved_reads, self._saved_for_watched = budget - len(chosen), for_watched - len(first)
        return chosen

    def _reads_first(self, now: float) -> bool:
        """Return whether this node reads all files soon: it is among the first of those that are seen to be alive."""
        others = self._files.keys() - {self._own}
        if (
            not self._beats.many
            or self._own is None
            or all(self._files[node].read_at > float("-inf") for node in others)
        ):
            return False
        alive = {*self._beats.moved_since(now - self._beats.heard_seconds), self._own}
        return len(alive) > 1 and self._own in sorted(alive, key=natural_order)[:_FIRST_READERS]

    def _before_others(self, nodes: Sequence[str], often: Sequence[str], attended: Iterable[str]) -> list[str]:
        """Return the nodes that are read before it is their turn, those that were read longest ago first.

        There are none if one reading covers all nodes, or as long as some file was never read. `often`: those among
        the nodes that are due.
        """
        if self._own is None or len(often) <= self._most_at_once or self._files[often[0]].read_at == float("-inf"):
            return []
        ring = sorted((*nodes, self._own), key=natural_order)
        watched = {*watched_nodes(ring, ring.index(self._own)), *attended}
        return sorted(watched & set(often), key=self._order)

    def _order(self, node: str) -> tuple[float, float, str]:
        """Return a sort key: the file that was read longest ago is the first, and of unread ones the newest."""
        return self._files[node].read_at, -self._dormant.written_at(heartbeat_path(node)), node

    def _names(self) -> Collection[str]:
        """Return the names in the folder. The listing of `survey` counts once."""
        listing, self._beats.listing = self._beats.listing, None
        if listing is not None:
            return listing
        return self.storage.names(FOLDER) if self._survey is None else self._survey

    def read_all(self) -> HeartbeatReadings:
        """Read the files of all members. Raises `StorageError` if the folder cannot be listed."""
        self.survey()
        return replace(self._read_each(_nodes_in(self._names()), sys.maxsize), complete=True)

    def read(self, nodes: Iterable[str]) -> HeartbeatReadings:
        """Read the files of these nodes, and report each one that is absent, torn, foreign or unreadable.

        A node may be alive even if storage gives an error for its file.
        """
        self.survey()
        return self._read_each(nodes, sys.maxsize)

    def _read_each(self, nodes: Iterable[str], unanswered_at_once: int) -> HeartbeatReadings:
        """Read the files of these nodes, until storage gave that many errors."""
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
        in_order = tuple(sorted(heartbeats, key=lambda heartbeat: natural_order(heartbeat.node)))
        return HeartbeatReadings(heartbeats=in_order, unread=unread, unanswered=frozenset(unanswered), complete=False)

    def _read(self, node: str) -> Heartbeat:
        """Return the heartbeat of a node. Raises `RecordError` if its file has none, `StorageError` if it hangs."""
        path = heartbeat_path(node)
        try:
            found = self._surveyed(path) or self._calls(path, partial(self.storage.read, path, HEARTBEAT.size))
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

    def _check_name(self, mine: Heartbeat) -> bool:
        """Read the file under this node's name before writing it, and return whether this daemon wrote it.

        Raises `NodeNameTakenError` if this daemon must end.

        A daemon that repeatedly finds new beats of the incarnation from before its own first beat came later, and ends.
        If two daemons started at the same moment, the one with the greater incarnation ends.
        """
        try:
            found = self._read(mine.node)
        except RecordError:
            return False
        if found.incarnation == mine.incarnation:
            return True
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
        return False


def watched_nodes(ring: Sequence[N], place: int) -> list[N]:
    """Return the nodes that the node at a place of a ring watches: those at the distances 1, 3, 9, 27 … before it.

    The node that proposes before it is among them. Each node is watched from as many places, near and far.
    """
    distances = takewhile(lambda distance: distance < len(ring), (_DISTANCE_FACTOR**power for power in count()))
    return [ring[place - distance] for distance in distances]


def _nodes_in(names: Iterable[str]) -> list[str]:
    """Return the nodes with a heartbeat file, in natural order."""
    return sorted((unquote(name[:-5]) for name in names if name.endswith(".json")), key=natural_order)


def _newest(heartbeats: Iterable[Heartbeat], besides: Collection[str]) -> tuple[Heartbeat, ...]:
    """Return the newest one of each node in natural order, of one beat the last; none of the nodes `besides`."""
    newest = dict[str, Heartbeat]()
    for heartbeat in heartbeats:
        known = newest.get(heartbeat.node)
        if known is None or known.incarnation != heartbeat.incarnation or known.beat <= heartbeat.beat:
            newest[heartbeat.node] = heartbeat
    return tuple(newest[node] for node in sorted(newest.keys() - set(besides), key=natural_order))
