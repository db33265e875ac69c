"""Recognise checkpoints that training renamed after this node had seen them, so that none is evaluated twice.

A checkpoint is its name and its digest, so a new name is a new checkpoint: `best.pt` may be a copy of `epoch_3.pt`. A
rename is different. The files keep their inodes, sizes and times, and the former name is gone. If the checkpoint of the
former name is pinned or settled, the new name is left out. Otherwise it counts, because nothing else is left.

This is the memory of one process: a node that starts after the rename knows only the new name, unless a pin has the
files by hard links. Of checkpoints that are gone, the newest thousand are remembered. `watched_catalog` calls this in
the storage thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sidecar.checkpoints.discovery_order import GONE_REMEMBERED
from sidecar.checkpoints.presence import Answer, Presence
from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.protocol.records import Key

Identity = frozenset[tuple[int, int, int]]
"""The inodes, sizes and times of the files of a checkpoint, which a rename of a file or its folder does not change."""


@dataclass(slots=True)
class RenamedCheckpoints:
    """Remember under which name the files of each checkpoint were first found."""

    gone_remembered: int = GONE_REMEMBERED
    forgotten_at_once: int = 100
    _first: dict[Identity, DiscoveredCheckpoint] = field(default_factory=dict)
    _own: dict[Key, None] = field(default_factory=dict)  # checkpoints that were reported under their name, and stay so
    _former: dict[Key, DiscoveredCheckpoint] = field(default_factory=dict)  # by the new name: the first one
    _scanned: Mapping[Key, DiscoveredCheckpoint] | None = None  # by the last scan
    _reported: tuple[frozenset[Key], Mapping[Key, DiscoveredCheckpoint]] = (frozenset(), {})  # what was left out of it

    def leave_out(
        self,
        scan: ScanResult,
        is_settled: Callable[[Key], bool],
        ask: Callable[[DiscoveredCheckpoint], Answer],
    ) -> ScanResult:
        """Return a scan without the checkpoints that are known under a former name.

        `is_settled`: whether the journal has settled a checkpoint. `ask`: returns whether its files lie in the
        checkpoint directory by their names.
        """
        found, is_new = scan.by_key, scan.by_key is not self._scanned

        def is_safe(former: DiscoveredCheckpoint) -> bool:
            key = former.checkpoint.key
            return (key in found and found[key].checkpoint.pin is not None) or is_settled(key)

        unknown = found.keys() - self._own.keys() - self._former.keys() if is_new else ()
        # After a restart a pin and the new name are found at once, and the pin has the first name.
        for key in sorted(unknown, key=lambda key: found[key].checkpoint.pin is None):
            self._note(key, found[key], is_safe, ask)
        if is_new:
            self._forget_gone(found)
        self._scanned = found
        for key in [key for key, former in self._former.items() if key in found and not is_safe(former)]:
            del self._former[key]
            self._own[key] = None
        renamed = frozenset(key for key in self._former if key in found and found[key].checkpoint.pin is None)
        if not renamed:
            return scan
        if is_new or renamed != self._reported[0]:  # the same object as long as nothing changes
            self._reported = renamed, {key: each for key, each in found.items() if key not in renamed}
        why = tuple((key[0], f"it is {self._former[key].checkpoint.name}, renamed") for key in sorted(renamed))
        return replace(scan, by_key=self._reported[1], left_out=(*scan.left_out, *why))

    def _note(
        self,
        key: Key,
        found: DiscoveredCheckpoint,
        is_safe: Callable[[DiscoveredCheckpoint], bool],
        ask: Callable[[DiscoveredCheckpoint], Answer],
    ) -> None:
        """Decide whether a checkpoint that was just found is a known one under a new name."""
        former = found
        if found.files:
            former = self._first.setdefault(_identity(found), found)
        if (
            former is not found
            and found.checkpoint.pin is None
            and former.checkpoint.name != key[0]
            and former.checkpoint.digest == key[1]
            and is_safe(former)
            and ask(former).presence is Presence.GONE
        ):
            self._former[key] = former
        else:
            self._own[key] = None

    def _forget_gone(self, found: Mapping[Key, DiscoveredCheckpoint]) -> None:
        """Forget the checkpoints that are not found any more, but for the newest ones."""
        most, last = len(found) + self.gone_remembered + self.forgotten_at_once, -self.gone_remembered
        if len(self._own) > most:
            for key in [key for key in self._own if key not in found][:last]:
                del self._own[key]
        if len(self._former) > most:
            for key in [key for key in self._former if key not in found][:last]:
                del self._former[key]
        if len(self._first) > most:
            present = {_identity(each) for each in found.values()}
            for identity in [each for each in self._first if each not in present][:last]:
                del self._first[identity]


def _identity(found: DiscoveredCheckpoint) -> Identity:
    return frozenset((file.inode, file.size, file.mtime_ns) for file in found.files)
