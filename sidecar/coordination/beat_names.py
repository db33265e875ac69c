"""Tell the beats of many nodes by the names in one folder, so that a single listing shows which nodes are alive.

Only `heartbeats` calls this module. Next to its heartbeat file, each of many nodes has an empty file whose name counts
its beats. The node renames it with each beat. A name that counts on is a sign of life. A name that stands still proves
nothing: silence is proved only by the heartbeat file itself, as it is read. No I/O.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from sidecar.protocol.heartbeat import Heartbeat

_NAME: Final = re.compile(
    r"(?P<stem>.+)\.(?P<incarnation>\w+)\.(?P<changed>\d{1,15})\.(?P<load>\d{0,9})\.(?P<beat>\d{1,15})\.beat", re.ASCII
)
_LONGEST_NAME: Final = 255  # bytes, on usual filesystems

UNCHECKED_BEATS: Final = 3
"""Beats in a row that are written without a look at this node's file, as long as the name of its last beat stands."""


@lru_cache(maxsize=4096)
def file_stem(node: str) -> str:
    """Return the name of a node in names of files; any name of a node makes a safe one."""
    return quote(node, safe="-_.+=,@:", errors="surrogatepass")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBeat:
    """Hold what the name of one file tells about a node.

    `changed`: the beat in which the content of its heartbeat changed last, apart from what is excepted by `content`.
    `load`: as of `AboutNode`, a whole number.
    """

    incarnation: str
    changed: int
    load: int | None
    beat: int

    def applied_to(self, known: Heartbeat) -> Heartbeat | None:
        """Return a known heartbeat with a later beat of the same daemon, as if it had been read; None without one."""
        if known.incarnation != self.incarnation or self.beat <= known.beat:
            return None
        if self.load == _load_of(known):  # copies of a thousand heartbeats take time
            return replace(known, beat=self.beat)
        load = None if self.load is None else float(self.load)
        return replace(known, beat=self.beat, about=replace(known.about, load=load))


def content(heartbeat: Heartbeat) -> Heartbeat:
    """Return what readers of a heartbeat must know, without what changes in each beat.

    The name of the beat tells the load. The progress of workers is read from nodes that are attended.
    """
    return replace(heartbeat, beat=0, doing=None, about=replace(heartbeat.about, load=None))


def beat_name(heartbeat: Heartbeat, changed: int) -> str | None:
    """Return the name that tells a beat; None if it would be too long, or has an unusual incarnation."""
    load = _load_of(heartbeat)
    told = "" if load is None else load
    name = f"{file_stem(heartbeat.node)}.{heartbeat.incarnation}.{changed}.{told}.{heartbeat.beat}.beat"
    return name if len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) else None


def node_of(path: str) -> str:
    """Return the node that a heartbeat file, or a file whose name tells a beat, belongs to."""
    name = path.rpartition("/")[2]
    match = _NAME.fullmatch(name)
    return unquote(name.removesuffix(".json") if match is None else match["stem"])


def names_of(node: str, listing: Iterable[str]) -> list[str]:
    """Return the names that tell beats of a node, also those of its former daemons."""
    start = f"{file_stem(node)}."
    found = (_NAME.fullmatch(name) for name in listing if name.startswith(start))
    return [match[0] for match in found if match is not None and match["stem"] == file_stem(node)]


@dataclass(slots=True)
class OwnBeat:
    """Hold what a node told by the name of its newest beat."""

    name: str | None = None  # None: there is no such name
    shown: tuple[Heartbeat, int] | None = None  # the content of its file, and since which beat
    unchecked: int = UNCHECKED_BEATS  # beats that were written since its file was read


class ListedBeats:
    """Follow the names of beats from listing to listing, for one reader. `heard_seconds`: as of `ReadLimits`."""

    def __init__(self, heard_seconds: float = 5.0) -> None:
        self.heard_seconds = heard_seconds
        self.own = OwnBeat()
        self.many = False  # whether beats are told by names
        self.listing: list[str] | None = None  # the names in the folder, until they are used
        self.heard = frozenset[str]()  # nodes that are seen to be alive, and whose content did not change
        self.newest: dict[str, ListedBeat] = {}  # by node, of the newest listing
        self._moved_at: dict[str, float] = {}  # when this reader saw a node's name count on

    def update(self, listing: Iterable[str], now: float) -> set[str]:
        """Take over the names of a listing, and return the nodes whose names counted on.

        Names of two daemons under one name of a node tell nothing. Names of two beats of one daemon are from before
        and after a renaming. An earlier state of the folder, which storage may show, is no news.
        """
        before, self.newest = self.newest, {}
        several = set[str]()
        for match in filter(None, map(_NAME.fullmatch, listing)):
            node, found = unquote(match["stem"]), _listed(match)
            other = self.newest.setdefault(node, found)
            if other.incarnation != found.incarnation:
                several.add(node)
            elif found.beat > other.beat:
                self.newest[node] = found
        for node in several:
            del self.newest[node]
        moved = {node for node, beat in self.newest.items() if _is_later(beat, before.get(node))}
        self._moved_at = {node: at for node, at in self._moved_at.items() if node in self.newest}
        self._moved_at |= dict.fromkeys(moved, now)
        return moved

    def moved_since(self, time: float) -> list[str]:
        """Return the nodes whose names were seen to count on after a time."""
        return [node for node, at in self._moved_at.items() if at > time]


def _load_of(heartbeat: Heartbeat) -> int | None:
    """Return the load that a name tells: a whole number."""
    return None if heartbeat.about.load is None else int(heartbeat.about.load)


def _is_later(beat: ListedBeat, known: ListedBeat | None) -> bool:
    """Return whether a name is that of a later beat of the same daemon: a sign of life."""
    return known is not None and known.incarnation == beat.incarnation and known.beat < beat.beat


def _listed(match: re.Match[str]) -> ListedBeat:
    """Return what a name tells."""
    load = int(match["load"]) if match["load"] else None
    return ListedBeat(
        incarnation=match["incarnation"], changed=int(match["changed"]), load=load, beat=int(match["beat"])
    )
