"""Looks at the checkpoints, holds what is wanted, lets go what is not, and tidies what workers saved.

Called from the courier's thread. It decides nothing of its own: what is wanted is said by the daemon.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.files import contents
from sidecar.checkpoints.found import BrokenPin, Found, Look
from sidecar.checkpoints.room import Room
from sidecar.checkpoints.watch import Watch
from sidecar.clock import Clock
from sidecar.daemon.pinner import Pinner
from sidecar.daemon.retention import Tidied, Tidying
from sidecar.daemon.saves import Saves
from sidecar.daemon.turns import Turns
from sidecar.daemon.wants import Wanted, Wants
from sidecar.errors import ChecksumError, IncompleteError, MustCopyError, NoRoomError, StorageError, VanishedError
from sidecar.records import Key, Settlement, Verdict

_CLEAN_SECONDS: Final = 3600.0  # between two looks for what nodes that are gone left half pinned
_CLEAN_AGAIN_SECONDS: Final = 120.0  # from the first to the second: what this one left, if it was killed just before

_Content = list[tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What was said of one look, and who of it is to be held or let go, in order of discovery."""

    found: Mapping[Key, Found]
    version: object
    basis: object
    wanted: Wanted
    concerned: list[Key]


@dataclass(slots=True)
class _Result:
    """What came of holding, and letting go, in one look."""

    changes: dict[Key, Found | None] = field(default_factory=dict)
    no_room: dict[Key, str] = field(default_factory=dict)
    waiting: list[tuple[str, str]] = field(default_factory=list)
    failing: dict[Key, tuple[_Content, float]] = field(default_factory=dict)
    to_copy: set[Key] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look brought. `pins_bytes`: None if it is as before; `no_room`: what could not be pinned, and why."""

    look: Look
    given_up: tuple[Settlement, ...]
    pins_bytes: int | None
    watch_problem: str | None
    no_room: Mapping[Key, str]
    done: bool


@dataclass(slots=True)
class Keeper:
    """The folders of one run: checkpoints, their pins, and what workers saved of their evaluations."""

    root: Path  # the run's state directory
    catalog: Catalog
    watch: Watch | None  # None: this node does not look at checkpoints
    pinner: Pinner
    saves: Saves
    clock: Clock
    room: Room = field(default_factory=Room)
    is_done: Callable[[], bool] = lambda: False  # whether the trainer's marker is there
    sweep_seconds: float = 2.0  # between looks at more than file events tell of
    corrupt_after_seconds: float = 60.0  # before what cannot be pinned as it was found is given up
    turns: Turns = field(default_factory=Turns)
    _hints: set[str] = field(default_factory=set)  # names that changed since a look succeeded
    _swept_at: float = float("-inf")
    _clean_at: tuple[float, ...] = ()  # the next two
    _lost: list[Settlement] = field(default_factory=list)  # not yet told: a look may fail after it found them
    _chosen: _Chosen | None = None  # as long as neither what is found nor what is wanted changes
    _seen: Mapping[Key, Found] = field(default_factory=dict)  # by the last look
    _shown: Mapping[Key, Found] = field(default_factory=dict)  # to the daemon, by the last look that did not fail
    _news: set[Key] = field(default_factory=set)  # what may differ between the two
    _measured: frozenset[Key] | None = None  # the pins that were, when it was told what they hold
    _to_copy: set[Key] = field(default_factory=set)  # what cannot be linked: another node copies it, or will
    # Pins in the last look: a node that just came may want them, so they go in the next.
    _unwanted: set[Key] = field(default_factory=set)
    _fading: dict[Key, Found] = field(default_factory=dict)  # gone, but some node is copying it still
    # What is not as it was found when it is pinned: its files then, and since when.
    _failing: dict[Key, tuple[_Content, float]] = field(default_factory=dict)
    # What is damaged though its structure is whole, as its files were then; each look tells of it.
    _damaged: dict[Key, tuple[_Content, Settlement]] = field(default_factory=dict)

    def has_no_place(self) -> bool:
        """Whether the state directory lies in a checkpoint directory that is not there yet, and must not create it."""
        if not self.root.is_dir():
            with contextlib.suppress(StorageError):  # what is in the way is explained by who writes there
                return self._note(self.catalog.look()).missing
        return False

    def clean(self) -> None:
        """Remove what daemons that died left half pinned, this node's first: it would count as held for good."""
        now = self.clock.now()
        if not self._clean_at or now >= self._clean_at[0]:
            self.pinner.clean()
            again = () if self._clean_at else (now + _CLEAN_AGAIN_SECONDS,)
            self._clean_at = (*again, now + _CLEAN_SECONDS)

    def tidy(self, tidying: Tidying) -> Tidied:
        """Remove what is no longer kept, measure what is; never raises: nothing rests on it."""
        return self.saves.tidy(tidying)

    def look(self, wants: Wants, *, leaving: bool) -> Sight:
        """Pin what is wanted, let go what is not; tells what is found now and what was lost on the way.

        `leaving`: this is the last look. Raises `StorageError` if a folder cannot be read or a pin not be written.
        """
        self.clean()
        done = self.is_done()  # before the look, which then sees all that was saved before the marker
        look = self._look(at_all=done)
        chosen = self._choose(look, wants)
        wanted = chosen.wanted
        result = _Result()
        self.turns.begin(self.pinner.bytes_copied)
        for key in chosen.concerned:
            self._hold(look.by_key[key], wanted, wants.before, result, leaving=leaving)
        self._failing, self._to_copy = result.failing, result.to_copy
        self._fading = self._follow_copies(look, wants, result)
        made = {("", digest) for digest in look.making if self.turns.goes_on(digest, self.clock.now())}
        changes, copied = result.changes, frozenset(self._fading.keys() | made)
        seen = replace(look.changed(changes), before=self._shown, news=self._news | changes.keys(), copied=copied)
        self._shown, self._news = seen.by_key, set(changes)
        spent = self._give_up(look.broken, wants, leaving=leaving)
        self._unwanted = {key for key in seen.pinned if key not in wanted.keep} | spent
        pins_bytes = self._measure_pins(seen)
        given_up, self._lost = tuple(self._lost), []
        if result.waiting:
            seen = replace(seen, waiting=(*seen.waiting, *result.waiting))
        problem = self.watch.problem if self.watch is not None else None
        return Sight(seen, given_up, pins_bytes, problem, result.no_room, done)

    def _look(self, *, at_all: bool) -> Look:
        """Look at what file events told of and, every now and then, beyond that; or `at_all`, as they may be late."""
        if self.watch is None:
            return self._note(self.catalog.look())
        self.watch.ensure()
        hints, now = self.watch.changed(), self.clock.now()
        if hints is None or at_all:
            look, self._swept_at = self.catalog.look(), now
        else:
            self._hints |= hints
            sweep = now >= self._swept_at + self.sweep_seconds
            look = self.catalog.look(self._hints, sweep=sweep)
            self._swept_at = now if sweep else self._swept_at
        self._hints = set()
        return self._note(look)

    def _note(self, look: Look) -> Look:
        """Remember what the look tells only once, as whoever is to hear it may not, this time."""
        self._lost += look.corrupt
        self._news |= look.news_since(self._seen)
        self._seen = look.by_key
        return look

    def _choose(self, look: Look, wants: Wants) -> _Chosen:
        """What is wanted, and what is to be held or let go; nobody is asked about thousands that are settled."""
        known, version, basis = self._chosen, wants.version, wants.basis  # what comes meanwhile is asked for again
        if known is not None and known.found is look.by_key and known.version == version:
            return known
        among = look.by_key
        if known is not None and known.basis == basis and known.wanted.undecided is not None:
            among = {key: among[key] for key in look.in_order(known.wanted.undecided | self._news)}
        wanted = wants(among)
        concerned = look.in_order({*wanted.hold, *look.pinned, *self._damaged})
        self._chosen = _Chosen(look.by_key, version, basis, wanted, concerned)
        return self._chosen

    def _failing_since(self, found: Found) -> float:
        content, since = self._failing.get(found.checkpoint.key, (None, 0.0))
        return since if content == contents(found.files) else self.clock.now()

    def _hold(self, found: Found, wanted: Wanted, before: int, result: "_Result", *, leaving: bool) -> None:
        """Pin it, or let it go, and note what came of it."""
        key = found.checkpoint.key
        if (damaged := self._damaged.get(key)) and damaged[0] == contents(found.files):
            self._lost.append(damaged[1])  # reading all of it again would find the same
            result.changes[key] = None
            return
        try:
            if (held := self._pin_or_unpin(found, wanted, before, leaving=leaving)) is not found:
                result.changes[key] = held
            elif key in wanted.hold and key in self._failing:
                result.failing[key] = self._failing[key]  # it is tried again, which takes more than one look
        except MustCopyError:
            result.to_copy.add(key)
        except NoRoomError as error:
            result.no_room[key] = str(error)
        except ChecksumError as error:
            reason = _settlement(found, "corrupt", error)
            self._damaged[key] = contents(found.files), reason
            self._lost.append(reason)
            result.changes[key] = None
        except VanishedError as error:
            self._lost.append(_settlement(found, "vanished", error))
            result.changes[key] = None
        except IncompleteError as error:  # it changed while it was pinned: the next look finds what it became
            content, since = contents(found.files), self._failing_since(found)
            result.waiting.append((found.checkpoint.name, str(error)))
            result.failing[key] = content, since
            if self.clock.now() - since >= self.corrupt_after_seconds:  # its files say that nothing did
                self._damaged[key] = content, _settlement(found, "corrupt", error)

    def _pin_or_unpin(self, found: Found, wanted: Wanted, before: int, *, leaving: bool) -> Found:
        """What it is then; the same where nothing is to be done, or not yet. Raises what `Pinner.pin` raises."""
        checkpoint = found.checkpoint
        key = checkpoint.key
        if key in wanted.hold and checkpoint.pin is None:
            return self._pin(found, before) or found
        if checkpoint.pin is not None and key not in wanted.keep and (leaving or key in self._unwanted):
            self.pinner.unpin(checkpoint)
            return replace(found, checkpoint=replace(checkpoint, pin=None))
        return found

    def _give_up(self, broken: Sequence[BrokenPin], wants: Wants, *, leaving: bool) -> set[Key]:
        """Tell of pins that cannot be read any more, and let go, in the next look, those that nobody waits for."""
        spent = set()
        for each in broken:
            checkpoint = each.found.checkpoint
            if checkpoint.key in wants({checkpoint.key: each.found}).keep:
                if each.certain:
                    self._lost.append(_settlement(each.found, "corrupt", f"its pin cannot be read: {each.why}"))
            elif leaving or checkpoint.key in self._unwanted:
                self.pinner.unpin(checkpoint)
            else:
                spent.add(checkpoint.key)
        return spent

    def close(self) -> None:
        """Look no more."""
        if self.watch is not None:
            self.watch.stop()

    def _pin(self, found: Found, before: int) -> Found | None:
        """The pinned checkpoint, or None while it is being copied. Raises what `Pinner.pin` raises."""
        if not self.pinner.works_on(found.checkpoint.key):
            self.room.require(sum(file.size for file in found.files), self.pinner.bytes, self.pinner.bytes_alone)
        try:
            pinned = self._link(found)
        except MustCopyError:
            if not self.turns.is_mine(found, before=before, now=self.clock.now()):
                raise
            pinned = self.pinner.pin(found, copies=True)
        return pinned

    def _link(self, found: Found) -> Found | None:
        """Pin it, if that does not take a copy of much, as it once did; or ask how far that is."""
        key = found.checkpoint.key
        if key in self._to_copy and not self.pinner.works_on(key):
            raise MustCopyError(found.checkpoint.name)
        return self.pinner.pin(found, copies=False)

    def _follow_copies(self, look: Look, wants: Wants, result: _Result) -> dict[Key, Found]:
        """What is gone but still being copied; it has vanished once that ends without a pin, or gets no further."""
        gone = {key: self._shown[key] for key in self._news & self._shown.keys()} | self._fading
        fading: dict[Key, Found] = {}
        for key, found in gone.items():
            if key in look.by_key or key not in wants({key: found}).hold:
                continue
            if self.turns.copied(found) is not None and not self.turns.is_mine(found, before=0, now=self.clock.now()):
                fading[key] = found
                result.waiting.append((found.checkpoint.name, "it was deleted, and is still being copied"))
            elif key in self._fading:
                self._lost.append(_settlement(found, "vanished", "it was deleted before it was copied"))
        return fading

    def _measure_pins(self, look: Look) -> int | None:
        """What pins hold, from what the look saw: asking the storage for each file of each pin takes long for many."""
        if (pinned := frozenset(look.pinned)) == self._measured:
            return None
        self._measured = pinned
        return sum(file.size for each in look.pinned.values() for file in each.files)


def _settlement(found: Found, verdict: Verdict, why: Exception | str) -> Settlement:
    checkpoint = found.checkpoint
    return Settlement(checkpoint.name, checkpoint.digest, checkpoint.step, verdict, str(why))
