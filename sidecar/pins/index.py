"""The pins of a run, as one daemon knows them: which checkpoints they hold, and which of them hold nothing any more.

Read again only where they changed; it blocks for as long as the storage does. An error about one pin stays with it:
what was known of the pin is still so, and the reason is told.
"""

import errno
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from sidecar.bounded_calls import Calls, HangingError, call_directly
from sidecar.checkpoints.scan import BrokenPin, DiscoveredCheckpoint
from sidecar.confined import Folder, open_folder
from sidecar.errors import StorageError
from sidecar.pins.names import being_made, is_pin
from sidecar.pins.reader import Known, PinReader, PinReading, PinState
from sidecar.records import Key


class PinIndex:
    """What lies in the folder of pins; it may not exist yet.

    Args:
        pins: the folder.
        corrupt_after_seconds: how long a pin must be broken before that is certain.
        step_key, step_pattern, checkpoint_pattern: as the catalog's.
        calls: makes calls that may hang.
        looked: called after each pin, since a look may take long.
    """

    def __init__(
        self,
        pins: Path,
        *,
        corrupt_after_seconds: float,
        step_key: str | None,
        step_pattern: re.Pattern[str] | None,
        checkpoint_pattern: str | None = None,
        calls: Calls = call_directly,
        looked: Callable[[], None],
    ) -> None:
        self._pins = pins.absolute()
        self._corrupt_after_seconds = corrupt_after_seconds
        self._reader = PinReader(step_key, step_pattern, checkpoint_pattern)
        self._calls = calls
        self._looked = looked
        self._known: dict[str, Known] = {}
        self._broken: dict[str, tuple[str, float]] = {}  # why, and since when
        self.found: Mapping[Key, DiscoveredCheckpoint] = {}  # the same object as long as the same pins are there
        self.broken: tuple[BrokenPin, ...] = ()
        self.unknown: Mapping[str, str] = {}  # folders that this node cannot judge now, and why
        self.unclaimed: frozenset[str] = frozenset()  # those of which only the name says what they should hold
        self.reasons: tuple[tuple[str, str], ...] = ()  # of folders that hold nothing usable, why
        self.making: frozenset[str] = frozenset()  # the first 12 digits of digests of which some node makes a pin

    def look(self, now: float) -> set[Key]:
        """Look once; returns which checkpoints came, went or changed. Raises `StorageError` if nothing can be read."""
        with ExitStack() as stack:
            pins = self._open(stack)
            names = self._names(pins)
            self.making = frozenset(digest for name in names if (digest := being_made(name)) is not None)
            # What was there and is not listed is asked for by name: a listing that misses it is not evidence.
            asked = {*filter(is_pin, names), *self._known, *self._broken, *self.unknown}
            gone = PinReading(PinState.GONE)
            readings = {}
            for name in sorted(asked):
                self._looked()
                readings[name] = gone if pins is None else self._read(name, now)
        return self._take(readings, now)

    def _read(self, name: str, now: float) -> PinReading:
        """Read one pin; one whose reading does not come to an end is unknown."""
        known = self._known.get(name)

        def read() -> PinReading:
            with ExitStack() as stack:
                pins = self._open(stack)
                return PinReading(PinState.GONE) if pins is None else self._reader.read(pins, name, known, now)

        try:
            return self._calls(f"/pin {name}", read)
        except HangingError as error:
            return PinReading(PinState.UNKNOWN, why=str(error.strerror))

    def _take(self, readings: Mapping[str, PinReading], now: float) -> set[Key]:
        """Remember what reading the pins brought; returns which checkpoints came, went or changed."""
        known, was_broken = self._known, self._broken
        self._known, self._broken = {}, {}
        unknown, broken, unclaimed = {}, [], set()
        for name, (state, signature, found, why) in readings.items():
            if state is PinState.WHOLE and signature is not None and found is not None:
                self._known[name] = signature, found
            elif state in (PinState.UNKNOWN, PinState.NEWER):
                unknown[name] = why
                if name in known:
                    self._known[name] = known[name]
                elif state is PinState.UNKNOWN:
                    unclaimed.add(name)
            elif state is PinState.BROKEN:
                _, since = was_broken.get(name, ("", now))
                self._broken[name] = why, since
                if found is None:
                    unclaimed.add(name)
                else:
                    broken.append(BrokenPin(found, why, now - since >= self._corrupt_after_seconds))
        self.broken, self.unknown, self.unclaimed = tuple(broken), unknown, frozenset(unclaimed)
        whys = {name: why for name, (why, _) in self._broken.items()} | unknown
        self.reasons = tuple((name, f"unusable pin: {why}") for name, why in whys.items())
        return self._note({found.checkpoint.key: found for _, found in self._known.values()})

    def _note(self, found: Mapping[Key, DiscoveredCheckpoint]) -> set[Key]:
        before = self.found
        changed = {key for key in found.keys() | before.keys() if found.get(key) is not before.get(key)}
        self.found = found if changed else before
        return changed

    def _open(self, stack: ExitStack) -> Folder | None:
        """Open the folder of pins, never through a link in its place; None if there is none."""
        try:
            state = stack.enter_context(open_folder(self._pins.parent))
            return stack.enter_context(state.folder(self._pins.name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error) from error

    def _names(self, pins: Folder | None) -> list[str]:
        try:
            return [] if pins is None else pins.names()
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> StorageError:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return StorageError(f"{self._pins} is a link or a file, where the folder of pins is expected: move it away")
        return StorageError(f"cannot read the pins in {self._pins}: {error.strerror}")
