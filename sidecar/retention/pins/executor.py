"""Pin and unpin checkpoints, one after the other. An error about one checkpoint does not affect the others.

The reconciler calls this in the storage thread. Unpinning comes first, so that a full disk or quota has room for new
pins. `PinPolicy` has decided which pins are needed (`PinDecision`); `PinExecutor` carries that out with the
`BackgroundPinner`, and collects in `PinChanges` what the scan has to report.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final

from sidecar.checkpoints.files import contents
from sidecar.checkpoints.presence import Answer, Presence
from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.errors import (
    CheckpointError,
    IncompleteError,
    MustCopyError,
    NoRoomError,
    StorageError,
    UnreadableError,
    VanishedError,
)
from sidecar.protocol.records import Checkpoint, Key, Settlement
from sidecar.protocol.states import Verdict
from sidecar.retention.pins.background import BackgroundPinner
from sidecar.retention.pins.copy_arbiter import CopyArbiter
from sidecar.retention.pins.disk_budget import DiskBudget
from sidecar.retention.pins.policy import PinDecision, PinPolicy
from sidecar.system.clock import Clock

_LONGEST_PAUSE_SECONDS: Final = 30.0  # before a retry, which may be a long copy that fails only at its end

_Content = list[tuple[str, int, int]]


@dataclass(slots=True, kw_only=True)
class PinChanges:
    """Collect the changes that pinning and unpinning made in one scan. `unknown` and `failed` are as in `ScanResult`.

    `by_key`: checkpoints that are pinned or unpinned now; None for one that does not exist any more. `changing`: the
    files of checkpoints that changed while they were pinned, and since when. `to_copy`: checkpoints that cannot be
    linked.
    """

    by_key: dict[Key, DiscoveredCheckpoint | None] = field(default_factory=dict)
    no_room: dict[Key, str] = field(default_factory=dict)
    waiting: list[tuple[str, str]] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    given_up: list[Settlement] = field(default_factory=list)
    changing: dict[Key, tuple[_Content, float]] = field(default_factory=dict)
    to_copy: set[Key] = field(default_factory=set)


@dataclass(slots=True)
class Backoff:
    """Remember failures by name, and delay each retry: the first until the next scan, later ones for ever longer."""

    _failed: dict[str, tuple[int, float, str]] = field(default_factory=dict)

    def why_not(self, name: str, now: float) -> str | None:
        """Return the reason of the last failure while a retry is delayed; None if it may be tried now."""
        _, until, why = self._failed.get(name, (0, now, ""))
        return why if now < until else None

    def fail(self, name: str, why: str, now: float) -> None:
        """Note a failure, and delay the retry."""
        tries = self._failed.get(name, (0, now, ""))[0] + 1
        pause = 0.0 if tries == 1 else min(_LONGEST_PAUSE_SECONDS, 2.0**tries)
        self._failed[name] = min(tries, 10), now + pause, why

    def forget_others(self, names: Collection[str]) -> None:
        """Forget the failures of all names but these."""
        self._failed = {name: failure for name, failure in self._failed.items() if name in names}


@dataclass(slots=True, kw_only=True)
class PinExecutor:
    """Pin and unpin checkpoints, and remember those that did not succeed at once.

    `ask`: returns whether the files of a checkpoint exist. `damaged`: checkpoints whose content is damaged although
    their structure is whole, with the state of their files at that time. Each scan reports them.
    """

    pinner: BackgroundPinner
    room: DiskBudget
    turns: CopyArbiter
    clock: Clock
    corrupt_after_seconds: float
    ask: Callable[[DiscoveredCheckpoint], Answer]
    damaged: dict[Key, tuple[_Content, Settlement]] = field(default_factory=dict)
    _changing: dict[Key, tuple[_Content, float]] = field(default_factory=dict)  # as in `PinChanges`, by the last scan
    _to_copy: set[Key] = field(default_factory=set)  # likewise
    # Pins that the last scan found unneeded. A node that just came may need them, so they are removed one scan later.
    _unpin_next: set[Key] = field(default_factory=set)
    _unpin_next_names: set[str] = field(default_factory=set)  # the same for pins of which only the name is known
    _pin_backoff: Backoff = field(default_factory=Backoff)
    _read_backoff: Backoff = field(default_factory=Backoff)
    _unpin_backoff: Backoff = field(default_factory=Backoff)

    # -- unpin -----------------------------------------------------------------------------------------------------

    def unpin(self, scan: ScanResult, policy: PinPolicy, decision: PinDecision, *, leaving: bool) -> PinChanges:
        """Remove pins that nobody needs now and nobody needed in the last scan, and give up pins that are unreadable.

        `leaving`: there is no later scan, so pins that nobody needs now are removed at once.
        """
        changes, pinned = PinChanges(), scan.pinned()
        unneeded = {key: discovered.checkpoint for key, discovered in pinned.items() if key not in decision.retain}
        for broken in scan.broken:
            checkpoint = broken.expected.checkpoint
            if not policy.retains(checkpoint.key):
                unneeded[checkpoint.key] = checkpoint
            elif broken.certain:
                reason = f"its pin cannot be read: {broken.why}"
                changes.given_up.append(settlement(broken.expected, Verdict.CORRUPT, reason))
        names = self._unclaimed(scan, policy, decision)
        for key, checkpoint in unneeded.items():
            by = policy if key in pinned else None  # a pin that cannot be read is not worth an export
            if (leaving or key in self._unpin_next) and self._unpin(checkpoint, changes, by) and key in pinned:
                changes.by_key[key] = replace(pinned[key], checkpoint=replace(checkpoint, pin=None))
        for name, checkpoint in names.items():
            if leaving or name in self._unpin_next_names:
                self._unpin(checkpoint, changes, None)
        self._unpin_next = {key for key in unneeded if key not in changes.by_key}
        self._unpin_next_names = set(names)
        self._unpin_backoff.forget_others(changes.failed)
        return changes

    def _unclaimed(self, scan: ScanResult, policy: PinPolicy, decision: PinDecision) -> dict[str, Checkpoint]:
        """Return the settled checkpoints of pins of which only the name is known, by that name."""
        if not scan.unclaimed:
            return {}
        retained = {scan.by_key[key].checkpoint.folder for key in decision.retain if key in scan.by_key}
        settled = {}
        for name in scan.unclaimed - retained - policy.exported().keys():
            keys = policy.settled_as(name)
            if keys and not any(map(policy.retains, keys)):
                settled[name] = Checkpoint(name=keys[0][0], digest=keys[0][1], step=None, format="")
        return settled

    def _unpin(self, checkpoint: Checkpoint, changes: PinChanges, policy: PinPolicy | None) -> bool:
        """Remove one pin unless its retry is delayed, and return whether it was removed.

        `policy`: says whether the pin is exported instead; None: it is not.
        """
        name, now = checkpoint.folder, self.clock.now()
        if (why := self._unpin_backoff.why_not(name, now)) is None:
            try:
                if policy is not None and self.pinner.exports is not None and name in policy.exported():
                    if not self.pinner.exports.export(checkpoint, policy):
                        return False  # it is being uploaded
                else:
                    self.pinner.unpin(checkpoint)
            except (StorageError, OSError) as error:
                why = str(error)
                self._unpin_backoff.fail(name, why, now)
            else:
                self._pin_backoff = Backoff()  # there may be room now
                return True
        changes.failed[name] = why
        return False

    # -- pin -------------------------------------------------------------------------------------------------------

    def pin(self, scan: ScanResult, decision: PinDecision, before: int, changes: PinChanges) -> None:
        """Pin the checkpoints of the decision, and note the results in `changes`.

        `before`: the number of nodes whose turn to copy comes before this one's.
        """
        pinned = scan.pinned()
        readable = {key for key, discovered in pinned.items() if discovered.checkpoint.folder not in scan.unknown}
        useful = readable & (decision.retain | decision.pin) - changes.by_key.keys()
        concerned = {*decision.pin, *pinned, *self.damaged}
        for key in [key for key in scan.by_key if key in concerned]:
            discovered = changes.by_key.get(key) or scan.by_key[key]
            if self._is_damaged(discovered, changes):
                continue
            if key not in decision.pin or discovered.checkpoint.pin is not None:
                continue
            if self._try_to_pin(discovered, before, changes, is_first=not useful):
                useful.add(key)
        changes.unknown |= self.pinner.hanging()
        self._changing, self._to_copy = changes.changing, changes.to_copy
        self._pin_backoff.forget_others(changes.failed)
        self._read_backoff.forget_others(changes.unknown)

    def _is_damaged(self, discovered: DiscoveredCheckpoint, changes: PinChanges) -> bool:
        """Return whether a checkpoint still has the files that were found damaged. If so, report it again."""
        damaged = self.damaged.get(discovered.checkpoint.key)
        if damaged is None or damaged[0] != contents(discovered.files):
            return False
        changes.given_up.append(damaged[1])
        changes.by_key[discovered.checkpoint.key] = None
        return True

    def _try_to_pin(
        self, discovered: DiscoveredCheckpoint, before: int, changes: PinChanges, *, is_first: bool
    ) -> bool:
        """Pin one checkpoint, note the result, and return whether it is pinned."""
        key, name, now = discovered.checkpoint.key, discovered.checkpoint.folder, self.clock.now()
        for backoff, reasons in ((self._pin_backoff, changes.failed), (self._read_backoff, changes.unknown)):
            if (why := backoff.why_not(name, now)) is not None:
                reasons[name] = why
                return False
        try:
            pinned = self._pin(discovered, before, changes, is_first=is_first)
        except MustCopyError:
            changes.to_copy.add(key)
        except NoRoomError as error:
            changes.no_room[key] = str(error)
        except CheckpointError as error:
            self._note_trouble(discovered, error, changes)
        except (StorageError, OSError) as error:
            self._pin_backoff.fail(name, str(error), now)
            changes.failed[name] = str(error)
        else:
            if pinned is not None:
                changes.by_key[key] = pinned
                return True
            if key in self._changing:
                changes.changing[key] = self._changing[key]  # the retry takes more than one scan
        return False

    def _note_trouble(self, discovered: DiscoveredCheckpoint, error: CheckpointError, changes: PinChanges) -> None:
        """Note why the files of a checkpoint could not be pinned as they were found."""
        key, name = discovered.checkpoint.key, discovered.checkpoint.folder
        if isinstance(error, VanishedError):
            self._note_vanished(discovered, error, changes)
        elif isinstance(error, UnreadableError):
            self._read_backoff.fail(name, str(error), self.clock.now())
            changes.unknown[name] = str(error)
        elif isinstance(error, IncompleteError):  # its files changed meanwhile: the next scan reads them again
            self._note_changed(discovered, error, changes)
        else:
            reason = settlement(discovered, Verdict.CORRUPT, error)
            self.damaged[key] = contents(discovered.files), reason
            changes.given_up.append(reason)
            changes.by_key[key] = None

    def _note_vanished(self, discovered: DiscoveredCheckpoint, error: VanishedError, changes: PinChanges) -> None:
        """Note that files were missing. A checkpoint is gone only if a request for its files by name says so."""
        presence, why = self.ask(discovered)
        if presence is Presence.UNKNOWN:
            changes.unknown[discovered.checkpoint.folder] = f"cannot be read: {why}"
        elif presence is Presence.THERE:
            changes.waiting.append((discovered.checkpoint.name, str(error)))
        else:
            changes.given_up.append(settlement(discovered, Verdict.VANISHED, error))
            changes.by_key[discovered.checkpoint.key] = None

    def _note_changed(self, discovered: DiscoveredCheckpoint, error: IncompleteError, changes: PinChanges) -> None:
        """Note that content changed while it was pinned, and give it up if its files seem unchanged for long."""
        key, content, now = discovered.checkpoint.key, contents(discovered.files), self.clock.now()
        before, since = self._changing.get(key, (None, now))
        since = since if before == content else now
        changes.waiting.append((discovered.checkpoint.name, str(error)))
        changes.changing[key] = content, since
        if now - since >= self.corrupt_after_seconds:  # sizes and times of its files say that nothing changed
            self.damaged[key] = content, settlement(discovered, Verdict.CORRUPT, error)

    def _pin(
        self, discovered: DiscoveredCheckpoint, before: int, changes: PinChanges, *, is_first: bool
    ) -> DiscoveredCheckpoint | None:
        """Return the pinned checkpoint, or None while it is copied. Raises what `BackgroundPinner.pin` raises."""
        if not self.pinner.works_on(discovered.checkpoint.key):
            self._require_room(discovered, changes, is_first=is_first)
        try:
            return self._link(discovered)
        except MustCopyError:
            if not self.turns.is_mine(discovered, before=before, now=self.clock.now()):
                raise
            return self.pinner.pin(discovered, copies=True)

    def _require_room(self, discovered: DiscoveredCheckpoint, changes: PinChanges, *, is_first: bool) -> None:
        """Raise `NoRoomError` unless there is room. The first pin is always made, or no evaluation could ever run.

        The pins that take the room then are useless for this node: they are removed soon, or cannot be read, or their
        makers died.
        """
        try:
            self.room.require(sum(file.size for file in discovered.files), self.pinner.bytes, self.pinner.bytes_alone)
        except NoRoomError as error:
            if not is_first or self.turns.anything_goes_on(self.clock.now()):
                raise
            why = f"pinned in spite of that, because this node can use no other pin: {error}"
            changes.waiting.append((discovered.checkpoint.name, why))

    def _link(self, discovered: DiscoveredCheckpoint) -> DiscoveredCheckpoint | None:
        """Pin it if that takes no large copy, or ask how far a copy is that has begun."""
        key = discovered.checkpoint.key
        if key in self._to_copy and not self.pinner.works_on(key):
            raise MustCopyError(discovered.checkpoint.name)
        return self.pinner.pin(discovered, copies=False)


def settlement(discovered: DiscoveredCheckpoint, verdict: Verdict, why: Exception | str) -> Settlement:
    """Return the record that settles a checkpoint with a verdict and the reason for it."""
    checkpoint = discovered.checkpoint
    return Settlement(
        name=checkpoint.name, digest=checkpoint.digest, step=checkpoint.step, verdict=verdict, reason=str(why)
    )
