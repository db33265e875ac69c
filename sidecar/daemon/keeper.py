"""Looks at the checkpoints, holds what is wanted, lets go what is not, and tidies what workers saved.

Called from the courier's thread. It decides nothing of its own: what is wanted is said by the daemon.
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from sidecar.checkpoints.catalog import Catalog, Found, Look
from sidecar.checkpoints.files import File
from sidecar.checkpoints.watch import Watch
from sidecar.clock import Clock
from sidecar.daemon.pinner import Pinner
from sidecar.daemon.retention import Tidying
from sidecar.daemon.saves import Saves
from sidecar.errors import ChecksumError, IncompleteError, StorageError, VanishedError
from sidecar.records import Key, Settlement, Verdict

_ABANDONED_SECONDS: Final = 86400.0  # another daemon may still copy into a pin that is younger than a day


class Wanted(Protocol):
    """Which checkpoints must be held; asked from the courier's thread."""

    @property
    def version(self) -> Any:
        """Equal as long as the answers about the same checkpoints are."""
        ...

    def __call__(self, key: Key, /) -> bool:
        """Whether this one must be."""
        ...

    def among(self, keys: Mapping[Key, object], /) -> Iterable[Key]:
        """Those of many, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look brought. `pins_bytes`: None if it is as before."""

    look: Look
    given_up: tuple[Settlement, ...]
    pins_bytes: int | None
    watch_problem: str | None


@dataclass(slots=True)
class Keeper:
    """The folders of one run: checkpoints, their pins, and what workers saved of their evaluations."""

    root: Path  # the run's state directory
    catalog: Catalog
    watch: Watch | None  # None: this node does not look at checkpoints
    pinner: Pinner
    saves: Saves
    clock: Clock
    pin_max_bytes: int | None = None
    sweep_seconds: float = 2.0  # between looks at more than file events tell of
    _hints: set[str] = field(default_factory=set)  # names that changed since a look succeeded
    _swept_at: float = float("-inf")
    _lost: list[Settlement] = field(default_factory=list)  # not yet told: a look may fail after it found them
    # The wanted ones of a look, as long as neither what is found nor what is wanted changes.
    _chosen: tuple[Mapping[Key, Found], Any, list[Key]] | None = None
    _pins_changed: bool = True
    # Pins in the last look: a node that just came may want them, so they go in the next.
    _unwanted: set[Key] = field(default_factory=set)
    # Whose checksums do not match, as their files were then.
    _damaged: dict[Key, tuple[tuple[File, ...], Settlement]] = field(default_factory=dict)

    def has_no_place(self) -> bool:
        """Whether the state directory lies in a checkpoint directory that is not there yet, and must not create it."""
        if not self.root.is_dir():
            with contextlib.suppress(StorageError):  # what is in the way is explained by who writes there
                look = self.catalog.look()
                self._lost += look.corrupt
                return look.missing
        return False

    def clean(self) -> None:
        """Remove what daemons that died left half pinned."""
        self.pinner.clean(_ABANDONED_SECONDS, self.clock)

    def tidy(self, tidying: Tidying) -> Mapping[str, int]:
        """Remove what is no longer kept; returns the bytes of what is to be measured."""
        return self.saves.tidy(tidying)

    def look(self, is_wanted: Wanted, *, leaving: bool) -> Sight:
        """Pin what is wanted, let go what is not; tells what is found now and what was lost on the way.

        `leaving`: this is the last look. Raises `StorageError` if a folder cannot be read or a pin not be written.
        """
        look = self._look()
        self._lost += look.corrupt
        changes: dict[Key, Found | None] = {}
        waiting: list[tuple[str, str]] = []
        for key in self._concerned(look, is_wanted):
            each = look.by_key[key]
            if (damaged := self._damaged.get(key)) and damaged[0] == each.files:
                self._lost.append(damaged[1])  # reading all of it again would find the same
                changes[key] = None
                continue
            try:
                if (now := self._hold(each, wanted=is_wanted(key), leaving=leaving)) is not each:
                    changes[key] = now
            except ChecksumError as error:
                reason = _settlement(each, "corrupt", error)
                self._damaged[key] = each.files, reason
                self._lost.append(reason)
                changes[key] = None
            except VanishedError as error:
                self._lost.append(_settlement(each, "vanished", error))
                changes[key] = None
            except IncompleteError as error:  # it changed while it was pinned: the next look finds what it became
                waiting.append((each.checkpoint.name, str(error)))
                changes[key] = None
        seen = look.changed(changes)
        self._unwanted = {key for key in seen.pinned if not is_wanted(key)}
        pins_bytes = self._measure_pins()
        given_up, self._lost = tuple(self._lost), []
        if waiting:
            seen = replace(seen, waiting=(*seen.waiting, *waiting))
        return Sight(seen, given_up, pins_bytes, self.watch.problem if self.watch is not None else None)

    def _look(self) -> Look:
        """Look at what file events told of and, every now and then, beyond that."""
        if self.watch is None:
            return self.catalog.look()
        self.watch.ensure()
        hints, now = self.watch.changed(), self.clock.now()
        if hints is None:
            look, self._swept_at = self.catalog.look(), now
        else:
            self._hints |= hints
            sweep = now >= self._swept_at + self.sweep_seconds
            look = self.catalog.look(self._hints, sweep=sweep)
            self._swept_at = now if sweep else self._swept_at
        self._hints = set()
        return look

    def _concerned(self, look: Look, is_wanted: Wanted) -> list[Key]:
        """What is to be held or let go, in order of discovery; thousands that are settled are not gone through."""
        if self._chosen is None or self._chosen[0] is not look.by_key or self._chosen[1] != is_wanted.version:
            version = is_wanted.version  # before: what comes meanwhile is asked for again
            chosen = dict.fromkeys(is_wanted.among(look.by_key)) | dict.fromkeys(look.pinned)
            chosen |= dict.fromkeys(key for key in self._damaged if key in look.by_key)
            self._chosen = look.by_key, version, list(chosen)
        return self._chosen[2]

    def _hold(self, found: Found, *, wanted: bool, leaving: bool) -> Found:
        """Pin it, or let it go; the same where nothing is to be done, or not yet. Raises what `Pinner.pin` raises."""
        checkpoint = found.checkpoint
        if wanted and checkpoint.pin is None and self._has_room(found):
            held_now = self.pinner.pin(found)
            self._pins_changed |= held_now is not None
            return held_now or found
        if checkpoint.pin is not None and not wanted and (leaving or checkpoint.key in self._unwanted):
            self.pinner.unpin(checkpoint)
            self._pins_changed = True
            return replace(found, checkpoint=replace(checkpoint, pin=None))
        return found

    def close(self) -> None:
        """Look no more."""
        if self.watch is not None:
            self.watch.stop()

    def _has_room(self, found: Found) -> bool:
        """Whether one more pin stays within the user's bound; the first is held in any case, or nothing would go on."""
        if self.pin_max_bytes is None:
            return True
        held = self.pinner.bytes()
        return held == 0 or held + sum(file.size for file in found.files) <= self.pin_max_bytes

    def _measure_pins(self) -> int | None:
        if not self._pins_changed:
            return None
        self._pins_changed = False
        return self.pinner.bytes()


def _settlement(found: Found, verdict: Verdict, why: Exception) -> Settlement:
    checkpoint = found.checkpoint
    return Settlement(checkpoint.name, checkpoint.digest, checkpoint.step, verdict, str(why))
