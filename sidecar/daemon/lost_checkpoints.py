"""Decide how checkpoints that are gone or damaged end: after how long, and with which verdict.

A vanished checkpoint is given up for ever, so it must be missing in all scans for a while. A checkpoint that would not
have been evaluated anyway is skipped instead, because it may have been unpinned on purpose. No I/O and no clock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from typing import Final

from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.protocol.records import Checkpoint, Key, Settlement
from sidecar.protocol.states import Verdict

_DELETED: Final = "it was deleted before it was evaluated"


@dataclass(frozen=True, slots=True)
class LostCheckpoint:
    """Hold a checkpoint that is gone: its settlement if it stays gone, and when it was discovered, written and lost.

    A checkpoint that was lost before it was pinned, and that no earlier scan discovered, counts as written last.
    """

    settlement: Settlement
    seen_at: float
    written_at: float
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanChange:
    """Describe the changes that a scan found, and how the journal judges them."""

    scan: ScanResult
    before: Mapping[Key, DiscoveredCheckpoint]  # the checkpoints that the last scan found
    new: Sequence[DiscoveredCheckpoint]  # the checkpoints that the last scan did not find
    given_up: Sequence[Settlement]  # settlements of checkpoints that were lost or found damaged during the scan
    is_settled: Callable[[Key], bool]  # returns whether the journal has settled a checkpoint for this node's task
    # Returns those of some checkpoints, in order of discovery, that will not be evaluated, and why
    passed_over: Callable[[Sequence[Checkpoint]], Mapping[Key, str]]

    def is_unreadable(self, settlement: Settlement) -> bool:
        """Return whether the checkpoint of a settlement has a pin that cannot be read now."""
        return _checkpoint(settlement).folder in self.scan.unknown


@dataclass(slots=True)
class LostCheckpoints:
    """Remember the checkpoints that are gone. Times are seconds of this node's clock.

    `vanished_after_seconds`: a checkpoint has vanished once it is missing in every scan for so many seconds.
    `given_up`: settlements of checkpoints that this node gave up and the journal has not settled yet.
    """

    vanished_after_seconds: float = 60.0
    given_up: dict[Key, Settlement] = field(default_factory=dict)
    _lost: dict[Key, LostCheckpoint] = field(default_factory=dict)  # and not given up yet
    _corrupt: dict[Key, Settlement] = field(default_factory=dict)  # whether settled or not

    def keys(self) -> frozenset[Key]:
        """Return the checkpoints that are gone or given up, and not settled."""
        return frozenset((*self._lost, *self.given_up))

    def settle(self, settlement: Settlement) -> None:
        """Apply a settlement of the journal, which settles or reopens a checkpoint."""
        self.given_up.pop(settlement.key, None)
        if settlement.verdict == Verdict.REQUEUED and (corrupt := self._corrupt.get(settlement.key)) is not None:
            self.given_up[settlement.key] = corrupt  # a requeue does not repair the files

    def postpone(self, now: float) -> None:
        """Restart the waiting time of all lost checkpoints, because the directory is gone and may come back whole."""
        self._lost = {key: replace(lost, since=now) for key, lost in self._lost.items()}

    def update(self, change: ScanChange, now: float) -> None:
        """Apply the losses of a scan, and give up the checkpoints that have been gone for long enough.

        A checkpoint that would not have been evaluated anyway is given up in the next scan.
        """
        present, lost_before = change.scan.by_key, self._lost
        lost = self._still_lost(self._add_lost(change, now), change, now)
        over = {key for key, item in lost.items() if now >= item.since + self.vanished_after_seconds}
        over |= {key for key in lost.keys() & lost_before.keys() if lost[key].settlement.verdict == Verdict.SKIPPED}
        certain = {
            settlement.key: settlement for settlement in change.given_up if settlement.verdict != Verdict.VANISHED
        }
        certain |= {key: lost[key].settlement for key in over}
        self._lost = {key: item for key, item in lost.items() if key not in certain}
        self._corrupt |= {
            settlement.key: settlement for settlement in change.given_up if settlement.verdict == Verdict.CORRUPT
        }
        self._corrupt = {key: settlement for key, settlement in self._corrupt.items() if key not in present}
        self.given_up = {
            key: settlement
            for key, settlement in (self.given_up | certain).items()
            if key not in present and not change.is_settled(key) and not change.is_unreadable(settlement)
        }

    def _add_lost(self, change: ScanChange, now: float) -> dict[Key, LostCheckpoint]:
        """Return the lost checkpoints, including those that this scan lost."""
        lost = dict(self._lost)
        before = change.before if change.before is not change.scan.by_key else {}  # no checkpoint came or went
        for key in filterfalse(change.scan.by_key.__contains__, before):
            if not change.is_settled(key):
                item, checkpoint = before[key], before[key].checkpoint
                deleted = Settlement(
                    name=checkpoint.name,
                    digest=checkpoint.digest,
                    step=checkpoint.step,
                    verdict=Verdict.VANISHED,
                    reason=_DELETED,
                )
                lost[key] = LostCheckpoint(deleted, item.seen_at, item.written_at, now)
        # A checkpoint that was lost before it was pinned was discovered by this scan, if not before.
        discovered_at = min((item.seen_at for item in change.new), default=now)
        for settlement in change.given_up:
            if settlement.verdict == Verdict.VANISHED:
                known = change.before.get(settlement.key)
                times = (known.seen_at, known.written_at) if known else (discovered_at, float("inf"))
                known_lost = lost.get(settlement.key) or LostCheckpoint(settlement, *times, now)
                lost[settlement.key] = replace(known_lost, settlement=settlement)
        return lost

    def _still_lost(self, lost: dict[Key, LostCheckpoint], change: ScanChange, now: float) -> dict[Key, LostCheckpoint]:
        """Return the lost checkpoints that neither came back nor were settled, with their present verdicts.

        As long as one is being copied, or has a broken pin, its waiting time starts again.
        """
        scan = change.scan
        may_return = scan.copied.union(pin.expected.checkpoint.key for pin in scan.broken)
        lost = {
            key: replace(item, since=now) if key in may_return else item
            for key, item in lost.items()
            if key not in scan.by_key and not change.is_unreadable(item.settlement) and not change.is_settled(key)
        }
        if not lost:
            return lost
        gone = [(item.seen_at, item.written_at, _checkpoint(item.settlement)) for item in lost.values()]
        present = [
            (item.seen_at, item.written_at, item.checkpoint)
            for key, item in scan.by_key.items()
            if not change.is_settled(key)
        ]
        reasons = change.passed_over([checkpoint for *_, checkpoint in sorted([*gone, *present], key=_by_discovery)])
        return {
            key: replace(item, settlement=replace(item.settlement, verdict=Verdict.SKIPPED, reason=reasons[key]))
            if key in reasons
            else item
            for key, item in lost.items()
        }


def _checkpoint(settlement: Settlement) -> Checkpoint:
    """Return the checkpoint of a settlement, which does not record its format."""
    return Checkpoint(name=settlement.name, digest=settlement.digest, step=settlement.step, format="")


def _by_discovery(item: tuple[float, float, Checkpoint]) -> tuple[float, bool, int, float]:
    """Return a sort key in the order of the catalog: within one scan by step, then by the time of writing."""
    seen_at, written_at, checkpoint = item
    return seen_at, checkpoint.step is None, checkpoint.step or 0, written_at
