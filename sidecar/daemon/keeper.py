"""Looks at the checkpoints, holds what is wanted, lets go what is not, and tidies what workers saved.

Called from the courier's thread. It decides nothing of its own: what is wanted is said by the daemon.
"""

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sidecar.checkpoints.catalog import Catalog, Found, Look
from sidecar.checkpoints.files import File
from sidecar.checkpoints.room import Room
from sidecar.checkpoints.watch import Watch
from sidecar.clock import Clock
from sidecar.daemon.pinner import Pinner
from sidecar.daemon.retention import Tidying
from sidecar.daemon.saves import Saves
from sidecar.errors import ChecksumError, IncompleteError, NoRoomError, StorageError, VanishedError
from sidecar.records import Checkpoint, Key, Settlement

_ABANDONED_SECONDS: Final = 86400.0  # another daemon may still copy into a pin that is younger than a day


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be pinned of what a look found, and what of it must stay pinned: the rest is let go."""

    hold: Container[Key]
    keep: Container[Key]


Choose = Callable[[Sequence[Checkpoint]], Wanted]
"""Says it of what was found, in order of discovery; called from the courier's thread, so it only looks things up."""


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
    _pins_changed: bool = True
    # Pins in the last look: a node that just came may want them, so they go in the next.
    _unwanted: set[Key] = field(default_factory=set)
    # Whose checksums do not match, as their files were then.
    _damaged: dict[Key, tuple[tuple[File, ...], Settlement]] = field(default_factory=dict)

    def has_no_place(self) -> bool:
        """Whether the state directory lies in a checkpoint directory that is not there yet, and must not create it."""
        if not self.root.is_dir():
            with contextlib.suppress(StorageError):  # what is in the way is explained by who writes there
                return self.catalog.look().missing
        return False

    def clean(self) -> None:
        """Remove what daemons that died left half pinned."""
        self.pinner.clean(_ABANDONED_SECONDS, self.clock)

    def tidy(self, tidying: Tidying) -> Mapping[str, int]:
        """Remove what is no longer kept; returns the bytes of what is to be measured."""
        return self.saves.tidy(tidying)

    def look(self, choose: Choose, *, leaving: bool) -> Sight:
        """Pin what is wanted, let go what is not; tells what is found now and what was lost on the way.

        `leaving`: this is the last look. Raises `StorageError` if a folder cannot be read or a pin not be written.
        """
        if self.watch is not None:
            self.watch.ensure()
        done = self.is_done()  # before the look, which then sees all that was saved before the marker
        look = self.catalog.look()
        wanted = choose([each.checkpoint for each in look.found])
        found: list[Found] = []
        no_room: dict[Key, str] = {}
        lost, waiting = list(look.corrupt), list(look.waiting)
        for each in look.found:
            checkpoint = each.checkpoint
            key, pinned = checkpoint.key, checkpoint.pin is not None
            if (damaged := self._damaged.get(key)) and damaged[0] == each.files:
                lost.append(damaged[1])  # reading all of it again would find the same
                continue
            try:
                if key in wanted.hold and not pinned:
                    found.append(self._pin(each) or each)
                elif pinned and key not in wanted.keep and (leaving or key in self._unwanted):
                    self.pinner.unpin(checkpoint)
                    found.append(replace(each, checkpoint=replace(checkpoint, pin=None)))
                    self._pins_changed = True
                else:
                    found.append(each)
            except NoRoomError as error:
                no_room[key] = str(error)
                found.append(each)
            except ChecksumError as error:
                reason = Settlement(checkpoint.name, checkpoint.digest, checkpoint.step, "corrupt", str(error))
                self._damaged[key] = each.files, reason
                lost.append(reason)
            except VanishedError as error:
                lost.append(Settlement(checkpoint.name, checkpoint.digest, checkpoint.step, "vanished", str(error)))
            except IncompleteError as error:  # it changed while it was pinned: the next look finds what it became
                waiting.append((checkpoint.name, str(error)))
        held = {each.checkpoint.key for each in found if each.checkpoint.pin is not None}
        self._unwanted = {key for key in held if key not in wanted.keep}
        return Sight(
            replace(look, found=tuple(found), waiting=tuple(waiting)),
            tuple(lost),
            self._measure_pins(found),
            self.watch.problem if self.watch is not None else None,
            no_room,
            done,
        )

    def close(self) -> None:
        """Look no more."""
        if self.watch is not None:
            self.watch.stop()

    def _pin(self, found: Found) -> Found | None:
        """The pinned checkpoint, or None while it is being copied."""
        if not self.pinner.works_on(found.checkpoint.key):
            self.room.require(sum(file.size for file in found.files), self.pinner.bytes, self.pinner.bytes_alone)
        pinned = self.pinner.pin(found)
        self._pins_changed |= pinned is not None
        return pinned

    def _measure_pins(self, found: Sequence[Found]) -> int | None:
        """What pins hold, from what the look saw: asking the storage for each file of each pin takes long for many."""
        if not self._pins_changed:
            return None
        self._pins_changed = False
        return sum(file.size for each in found if each.checkpoint.pin is not None for file in each.files)
