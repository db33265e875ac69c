"""Reconcile the pins with the policy: scan the checkpoints, unpin and pin, and clean up.

`PinReconciler` is called in the storage thread and blocks for as long as the storage does. `pins.policy` decides what
must be pinned, and `pins.executor` carries it out.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from pathlib import Path
from typing import Final, Protocol

from sidecar.checkpoints.presence import Answer, Presence
from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.checkpoints.watched_catalog import WatchedCatalog
from sidecar.errors import StorageError
from sidecar.protocol.records import Key, Plan, Settlement
from sidecar.protocol.states import Verdict
from sidecar.retention.exports.export_report import NO_EXPORTS, ExportsReport
from sidecar.retention.pins.background import BackgroundPinner
from sidecar.retention.pins.copy_arbiter import CopyArbiter
from sidecar.retention.pins.disk_budget import DiskBudget
from sidecar.retention.pins.executor import PinChanges, PinExecutor, settlement
from sidecar.retention.pins.policy import PinPolicy
from sidecar.retention.saves.retention import CleanupRequest, CleanupResult
from sidecar.system.clock import Clock

_CLEAN_SECONDS: Final = 5.0  # between two scans for unfinished pins that nobody makes any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """Hold the result of one scan, after pins were made and removed."""

    scan: ScanResult  # the scan, with the changes by pinning and unpinning
    # Settlements of checkpoints that were lost or found damaged. Each is reported once.
    given_up: tuple[Settlement, ...]
    pins_bytes: int  # bytes that the pins hold, counting a linked file in full
    watch_problem: str | None  # why there are no file events, or None
    no_room: Mapping[Key, str]  # why checkpoints could not be pinned for lack of room
    done: bool  # whether the trainer's marker exists
    exports: ExportsReport = NO_EXPORTS  # the exports of the best checkpoints


class Saves(Protocol):
    """Retain what workers saved."""

    def store(self, plan: Plan, /) -> bool:
        """Make this node's saves of a plan visible to all, and return whether those of all nodes are."""

    def tidy(self, tidying: CleanupRequest, /) -> CleanupResult:
        """Remove saves that are no longer retained, and measure the others. Never raises."""


@dataclass(slots=True, kw_only=True)
class PinReconciler:
    """Own the folders of one run: checkpoints, their pins, and the saves of the workers."""

    root: Path  # the run's state directory
    checkpoints: WatchedCatalog  # scans the checkpoints and the pins
    pinner: BackgroundPinner  # makes and removes pins
    saves: Saves  # removes saves of workers that are no longer retained
    clock: Clock  # the clock of this node
    room: DiskBudget = field(default_factory=DiskBudget)  # the part of the storage that pins may take
    is_done: Callable[[], bool] = lambda: False  # returns whether the trainer's marker exists
    corrupt_after_seconds: float = 60.0  # seconds before a checkpoint that cannot be pinned as it was found is given up
    # Decides which node copies checkpoints that cannot be linked
    turns: CopyArbiter = field(default_factory=CopyArbiter)
    _clean_at: float = float("-inf")
    _given_up: list[Settlement] = field(default_factory=list)  # not yet reported: a scan may fail after it found them
    _reported: Mapping[Key, DiscoveredCheckpoint] = field(default_factory=dict)  # to the daemon, by the last scan
    _absent: dict[Key, DiscoveredCheckpoint] = field(default_factory=dict)  # not listed now, but not gone
    _copied: dict[Key, DiscoveredCheckpoint] = field(default_factory=dict)  # gone, but some node is still copying it
    _executor: PinExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._executor = PinExecutor(
            pinner=self.pinner,
            room=self.room,
            turns=self.turns,
            clock=self.clock,
            corrupt_after_seconds=self.corrupt_after_seconds,
            ask=self._ask,
        )

    def _ask(self, discovered: DiscoveredCheckpoint) -> Answer:
        """Return whether the files of a checkpoint exist."""
        return self.checkpoints.catalog.ask(discovered)

    def has_no_place(self) -> bool:
        """Return whether the state directory lies in a checkpoint directory that does not exist yet.

        Nothing may be written then, because that would create the checkpoint directory.
        """
        if not self.root.is_dir():
            return self.checkpoints.catalog.is_missing()
        return False

    def clean(self) -> None:
        """Remove unfinished pins of daemons that died, because they would count as pins for ever."""
        now = self.clock.now()
        if now >= self._clean_at:
            self._clean_at = now + _CLEAN_SECONDS
            with contextlib.suppress(StorageError):  # the scan of the pins reports it
                self.pinner.clean(now, self.turns.copy_turn_seconds)

    def scan(self, policy: PinPolicy, *, leaving: bool, noticed: bool = False) -> Reconciliation:
        """Scan, unpin and pin by the policy, and return the checkpoints with those that were lost.

        `leaving`: this is the last scan. `noticed`: training says that there is a new checkpoint. Raises `StorageError`
        if a folder cannot be listed.
        """
        self.clean()
        done = self.is_done()  # before the scan, which then finds all checkpoints from before the marker
        scan = self._complete(self.checkpoints.scan(everything=done, noticed=noticed, is_settled=policy.is_settled))
        decision = policy.decide(scan.by_key)
        changes = self._executor.unpin(scan, policy, decision, leaving=leaving)
        self.turns.begin(self.pinner.bytes_copied)
        self._executor.pin(scan, decision, policy.before, changes)
        self._given_up += changes.given_up
        self._copied = self._follow_copies(scan, policy, changes)
        made = {("", digest) for digest in scan.making if self.turns.goes_on(digest, self.clock.now())}
        result = replace(
            scan.with_changes(changes.by_key),
            copied=frozenset(self._copied.keys() | made),
            unknown={**scan.unknown, **changes.unknown},
            failed=changes.failed,
            waiting=(*scan.waiting, *changes.waiting),
        )
        self._reported = result.by_key
        given_up, self._given_up = tuple(self._given_up), []
        return Reconciliation(
            scan=result,
            given_up=given_up,
            pins_bytes=sum(file.size for pin in result.pinned().values() for file in pin.files),
            watch_problem=self.checkpoints.watch_problem,
            no_room=changes.no_room,
            done=done,
            exports=NO_EXPORTS
            if self.pinner.exports is None
            else self.pinner.exports.reconcile(policy, leaving=leaving),
        )

    def unpin(self, policy: PinPolicy) -> None:
        """Remove pins by the policy and make none, because nothing can be written. The next scan reports the rest.

        Raises `StorageError` if a folder cannot be listed.
        """
        scan = self._complete(self.checkpoints.scan(everything=False, is_settled=policy.is_settled))
        changes = self._executor.unpin(scan, policy, policy.decide(scan.by_key), leaving=False)
        self._given_up += changes.given_up

    def close(self) -> None:
        """Stop watching."""
        self.checkpoints.close()

    def _complete(self, scan: ScanResult) -> ScanResult:
        """Add to a scan the checkpoints that it missed although their files still exist by name.

        Remember the corrupt checkpoints, which a scan reports only once, because this scan may still fail.
        """
        self._given_up += scan.corrupt
        broken = {pin.expected.checkpoint.key for pin in scan.broken}
        absent, unknown = dict[Key, DiscoveredCheckpoint](), dict(scan.unknown)
        for key, discovered in self._missed_by(scan, self._absent).items():
            if key in broken:
                continue
            presence, why = self._ask(discovered)
            if presence is not Presence.GONE:
                absent[key] = discovered
            if presence is Presence.UNKNOWN:
                unknown[discovered.checkpoint.folder] = f"cannot be read: {why}"
        self._absent = absent
        return replace(scan.with_changes(absent), unknown=unknown)

    def _missed_by(self, scan: ScanResult, others: dict[Key, DiscoveredCheckpoint]) -> dict[Key, DiscoveredCheckpoint]:
        """Return the checkpoints of the last report, and of `others`, that are not in a scan."""
        if self._reported is scan.by_key:  # nothing came or went
            return {key: discovered for key, discovered in others.items() if key not in scan.by_key}
        gone = filterfalse(scan.by_key.__contains__, self._reported)
        missed = {key: self._reported[key] for key in gone if key not in others}
        return missed | {key: discovered for key, discovered in others.items() if key not in scan.by_key}

    def _follow_copies(
        self, scan: ScanResult, policy: PinPolicy, changes: PinChanges
    ) -> dict[Key, DiscoveredCheckpoint]:
        """Return the deleted checkpoints that some node is still copying.

        Give up a checkpoint as vanished once its copy ends without a pin, or stops.
        """
        copied: dict[Key, DiscoveredCheckpoint] = {}
        for key, discovered in self._missed_by(scan, self._copied).items():
            if key not in policy.decide({key: discovered}).pin:
                continue
            if self.turns.copied(discovered) is not None and not self.turns.is_mine(
                discovered, before=0, now=self.clock.now()
            ):
                copied[key] = discovered
                changes.waiting.append((discovered.checkpoint.name, "it was deleted, and is still being copied"))
            elif key in self._copied:
                self._given_up.append(settlement(discovered, Verdict.VANISHED, "it was deleted before it was copied"))
        return copied
