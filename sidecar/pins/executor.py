"""Holds the checkpoints that are wanted and lets go the others, each by itself: an error about one stays with it.

Called by the keeper, in the courier's thread. It lets go first, so that a full disk or quota makes room for the rest.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import contents
from sidecar.checkpoints.presence import Answer, Presence
from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.clock import Clock
from sidecar.errors import (
    CheckpointError,
    IncompleteError,
    MustCopyError,
    NoRoomError,
    StorageError,
    UnreadableError,
    VanishedError,
)
from sidecar.pins.background import BackgroundPinner
from sidecar.pins.copy_arbiter import CopyArbiter
from sidecar.pins.disk_budget import DiskBudget
from sidecar.pins.policy import PinDecision, PinPolicy
from sidecar.records import Checkpoint, Key, Settlement
from sidecar.states import Verdict

_LONGEST_PAUSE_SECONDS: Final = 30.0  # until what failed is tried again; it may be a copy that fails at its end

_Content = list[tuple[str, int, int]]


@dataclass(slots=True)
class PinChanges:
    """What came of holding, and letting go, in one look. `unknown` and `failed` are as in `ScanResult`."""

    changes: dict[Key, DiscoveredCheckpoint | None] = field(default_factory=dict)
    no_room: dict[Key, str] = field(default_factory=dict)
    waiting: list[tuple[str, str]] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    lost: list[Settlement] = field(default_factory=list)
    failing: dict[Key, tuple[_Content, float]] = field(default_factory=dict)
    to_copy: set[Key] = field(default_factory=set)


@dataclass(slots=True)
class Backoff:
    """What failed, and until when it is not tried again: in the next look first, then after longer and longer."""

    _failed: dict[str, tuple[int, float, str]] = field(default_factory=dict)

    def why_not(self, name: str, now: float) -> str | None:
        """Return why it is not to be tried now; None: it is."""
        _, until, why = self._failed.get(name, (0, now, ""))
        return why if now < until else None

    def fail(self, name: str, why: str, now: float) -> None:
        """It failed."""
        tries = self._failed.get(name, (0, now, ""))[0] + 1
        pause = 0.0 if tries == 1 else min(_LONGEST_PAUSE_SECONDS, 2.0**tries)
        self._failed[name] = min(tries, 10), now + pause, why

    def forget(self, but: Collection[str]) -> None:
        """Remember these only."""
        self._failed = {name: each for name, each in self._failed.items() if name in but}


@dataclass(slots=True)
class PinExecutor:
    """Pins and unpins; what it remembers is about what did not succeed at once."""

    pinner: BackgroundPinner
    room: DiskBudget
    turns: CopyArbiter
    clock: Clock
    corrupt_after_seconds: float
    ask: Callable[[DiscoveredCheckpoint], Answer]  # whether the files of a checkpoint are there
    # What is damaged though its structure is whole, as its files were then; each look tells of it.
    damaged: dict[Key, tuple[_Content, Settlement]] = field(default_factory=dict)
    # What is not as it was found when it is pinned: its files then, and since when.
    _failing: dict[Key, tuple[_Content, float]] = field(default_factory=dict)
    _to_copy: set[Key] = field(default_factory=set)  # what cannot be linked: another node copies it, or will
    # Pins in the last look: a node that just came may want them, so they go in the next.
    _unwanted: set[Key] = field(default_factory=set)
    _unwanted_names: set[str] = field(default_factory=set)  # likewise, of those of which only the name is known
    _holding: Backoff = field(default_factory=Backoff)
    _reading: Backoff = field(default_factory=Backoff)
    _letting_go: Backoff = field(default_factory=Backoff)

    # -- letting go ------------------------------------------------------------------------------------------------

    def let_go(self, look: ScanResult, wants: PinPolicy, wanted: PinDecision, *, leaving: bool) -> PinChanges:
        """Let go what nobody wants now and nobody wanted in the last look; tell of pins that cannot be read any more.

        `leaving`: there is no later look.
        """
        result = PinChanges()
        go = {key: each.checkpoint for key, each in look.pinned.items() if key not in wanted.keep}
        for broken in look.broken:
            checkpoint = broken.found.checkpoint
            if checkpoint.key not in wants({checkpoint.key: broken.found}).keep:
                go[checkpoint.key] = checkpoint
            elif broken.certain:
                result.lost.append(settlement(broken.found, Verdict.CORRUPT, f"its pin cannot be read: {broken.why}"))
        names = self._unclaimed(look, wants, wanted)
        for key, checkpoint in go.items():
            if (leaving or key in self._unwanted) and self._unpin(checkpoint, result) and key in look.pinned:
                result.changes[key] = replace(look.pinned[key], checkpoint=replace(checkpoint, pin=None))
        for name, checkpoint in names.items():
            if leaving or name in self._unwanted_names:
                self._unpin(checkpoint, result)
        self._unwanted = {key for key in go if key not in result.changes}
        self._unwanted_names = set(names)
        self._letting_go.forget(result.failed)
        return result

    def _unclaimed(self, look: ScanResult, wants: PinPolicy, wanted: PinDecision) -> dict[str, Checkpoint]:
        """Pins of which only the name is known, and that are of checkpoints that are settled, by that name."""
        if not look.unclaimed:
            return {}
        kept = {look.by_key[key].checkpoint.folder for key in wanted.keep if key in look.by_key}
        settled = {}
        for name in look.unclaimed - kept:
            meant = {
                key: DiscoveredCheckpoint(Checkpoint(*key, None, ""), Path(), 0.0, 0.0) for key in wants.known_as(name)
            }
            if meant and not wants(meant).keep & meant.keys():
                settled[name] = next(iter(meant.values())).checkpoint
        return settled

    def _unpin(self, checkpoint: Checkpoint, result: PinChanges) -> bool:
        name, now = checkpoint.folder, self.clock.now()
        if (why := self._letting_go.why_not(name, now)) is None:
            try:
                self.pinner.unpin(checkpoint)
            except (StorageError, OSError) as error:
                why = str(error)
                self._letting_go.fail(name, why, now)
            else:
                self._holding = Backoff()  # there may be room now
                return True
        result.failed[name] = why
        return False

    # -- holding ---------------------------------------------------------------------------------------------------

    def hold(
        self, look: ScanResult, concerned: Iterable[Key], wanted: PinDecision, before: int, result: PinChanges
    ) -> None:
        """Pin those of the concerned that are wanted, and note what came of it; `before`: nodes that come first."""
        readable = {key for key, each in look.pinned.items() if each.checkpoint.folder not in look.unknown}
        holds = readable & (wanted.keep | wanted.hold) - result.changes.keys()
        for key in concerned:
            found = result.changes.get(key) or look.by_key[key]
            if self._is_damaged(found, result):
                continue
            if key not in wanted.hold or found.checkpoint.pin is not None:
                continue
            if self._hold(found, before, result, is_first=not holds):
                holds.add(key)
        result.unknown |= self.pinner.hanging()
        self._failing, self._to_copy = result.failing, result.to_copy
        self._holding.forget(result.failed)
        self._reading.forget(result.unknown)

    def _is_damaged(self, found: DiscoveredCheckpoint, result: PinChanges) -> bool:
        """Whether reading all of it again would find what it found before."""
        damaged = self.damaged.get(found.checkpoint.key)
        if damaged is None or damaged[0] != contents(found.files):
            return False
        result.lost.append(damaged[1])
        result.changes[found.checkpoint.key] = None
        return True

    def _hold(self, found: DiscoveredCheckpoint, before: int, result: PinChanges, *, is_first: bool) -> bool:
        """Pin it and note what came of it; returns whether it is pinned."""
        key, name, now = found.checkpoint.key, found.checkpoint.folder, self.clock.now()
        for pauses, told in ((self._holding, result.failed), (self._reading, result.unknown)):
            if (why := pauses.why_not(name, now)) is not None:
                told[name] = why
                return False
        try:
            pinned = self._pin(found, before, result, is_first=is_first)
        except MustCopyError:
            result.to_copy.add(key)
        except NoRoomError as error:
            result.no_room[key] = str(error)
        except CheckpointError as error:
            self._note_trouble(found, error, result)
        except (StorageError, OSError) as error:
            self._holding.fail(name, str(error), now)
            result.failed[name] = str(error)
        else:
            if pinned is not None:
                result.changes[key] = pinned
                return True
            if key in self._failing:
                result.failing[key] = self._failing[key]  # it is tried again, which takes more than one look
        return False

    def _note_trouble(self, found: DiscoveredCheckpoint, error: CheckpointError, result: PinChanges) -> None:
        """Note what reading its files brought."""
        key, name = found.checkpoint.key, found.checkpoint.folder
        if isinstance(error, VanishedError):
            self._note_vanished(found, error, result)
        elif isinstance(error, UnreadableError):
            self._reading.fail(name, str(error), self.clock.now())
            result.unknown[name] = str(error)
        elif isinstance(error, IncompleteError):  # it changed while it was pinned: the next look finds what it became
            self._note_changed(found, error, result)
        else:
            reason = settlement(found, Verdict.CORRUPT, error)
            self.damaged[key] = contents(found.files), reason
            result.lost.append(reason)
            result.changes[key] = None

    def _note_vanished(self, found: DiscoveredCheckpoint, error: VanishedError, result: PinChanges) -> None:
        """Its files were not there. Only they themselves, asked by name, can say that it is gone."""
        presence, why = self.ask(found)
        if presence is Presence.UNKNOWN:
            result.unknown[found.checkpoint.folder] = f"cannot be read: {why}"
        elif presence is Presence.THERE:
            result.waiting.append((found.checkpoint.name, str(error)))
        else:
            result.lost.append(settlement(found, Verdict.VANISHED, error))
            result.changes[found.checkpoint.key] = None

    def _note_changed(self, found: DiscoveredCheckpoint, error: IncompleteError, result: PinChanges) -> None:
        key, content, now = found.checkpoint.key, contents(found.files), self.clock.now()
        before, since = self._failing.get(key, (None, now))
        since = since if before == content else now
        result.waiting.append((found.checkpoint.name, str(error)))
        result.failing[key] = content, since
        if now - since >= self.corrupt_after_seconds:  # its files say that nothing did
            self.damaged[key] = content, settlement(found, Verdict.CORRUPT, error)

    def _pin(
        self, found: DiscoveredCheckpoint, before: int, result: PinChanges, *, is_first: bool
    ) -> DiscoveredCheckpoint | None:
        """The pinned checkpoint, or None while it is being copied. Raises what `BackgroundPinner.pin` raises."""
        if not self.pinner.works_on(found.checkpoint.key):
            self._require_room(found, result, is_first=is_first)
        try:
            return self._link(found)
        except MustCopyError:
            if not self.turns.is_mine(found, before=before, now=self.clock.now()):
                raise
            return self.pinner.pin(found, copies=True)

    def _require_room(self, found: DiscoveredCheckpoint, result: PinChanges, *, is_first: bool) -> None:
        """Raise `NoRoomError` if there is none. The first that is wanted is held all the same, or nothing would go on.

        What is in its way then is of no use to this node: it is let go soon, or cannot be read, or was left behind.
        """
        try:
            self.room.require(sum(file.size for file in found.files), self.pinner.bytes, self.pinner.bytes_alone)
        except NoRoomError as error:
            if not is_first or self.turns.anything_goes_on(self.clock.now()):
                raise
            why = f"pinned all the same, as no other pin is of use to this node: {error}"
            result.waiting.append((found.checkpoint.name, why))

    def _link(self, found: DiscoveredCheckpoint) -> DiscoveredCheckpoint | None:
        """Pin it, if that does not take a copy of much, as it once did; or ask how far that is."""
        key = found.checkpoint.key
        if key in self._to_copy and not self.pinner.works_on(key):
            raise MustCopyError(found.checkpoint.name)
        return self.pinner.pin(found, copies=False)


def settlement(found: DiscoveredCheckpoint, verdict: Verdict, why: Exception | str) -> Settlement:
    """Return the end of a checkpoint that was found."""
    checkpoint = found.checkpoint
    return Settlement(checkpoint.name, checkpoint.digest, checkpoint.step, verdict, str(why))
