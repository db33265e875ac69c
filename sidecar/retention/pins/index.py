"""Hold the pins of a run: the checkpoints in them, and the pins that are broken or cannot be read.

A pin is read again only if it changed. Reading blocks for as long as the storage does. An error about one pin does not
affect the others: the last reading of the pin still holds, and the reason is reported.
"""

import errno
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.scan import BrokenPin, PinScan
from sidecar.errors import StorageError
from sidecar.retention.pins.names import digest_in_name, is_pin
from sidecar.retention.pins.reader import Known, PinReader, PinReading, PinState
from sidecar.system.bounded_calls import Calls, HangingError, call_directly
from sidecar.system.confined import Folder, open_folder


class PinIndex:
    """Hold the content of the folder of pins, which may not exist yet.

    `rules` are those of the catalog. `progress` is called before each pin that is read, because a scan may take long.
    """

    def __init__(
        self,
        pins: Path,
        rules: DiscoveryRules,
        *,
        calls: Calls = call_directly,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._pins = pins.absolute()
        self._corrupt_after_seconds = rules.corrupt_after_seconds
        self._reader = PinReader(rules)
        self._calls = calls
        self._progress = progress
        self._known: dict[str, Known] = {}
        self._broken: dict[str, tuple[str, float]] = {}  # why, and since when
        self._unknown: Mapping[str, str] = {}

    def scan(self, now: float) -> PinScan:
        """Scan once. Raises `StorageError` if the folder of pins cannot be read."""
        with ExitStack() as stack:
            pins = self._open(stack)
            names = self._names(pins)
            making = frozenset(digest for name in names if (digest := digest_in_name(name)) is not None)
            # A known pin that is not listed is read by name: a listing without it does not prove that it is gone.
            asked = {*filter(is_pin, names), *self._known, *self._broken, *self._unknown}
            readings = {}
            for name in sorted(asked):
                self._progress()
                readings[name] = PinReading(PinState.GONE) if pins is None else self._read(name, now)
        return self._take(readings, making, now)

    def _read(self, name: str, now: float) -> PinReading:
        """Read one pin. If the storage hangs, its state is unknown."""
        known = self._known.get(name)

        def read() -> PinReading:
            with ExitStack() as stack:
                pins = self._open(stack)
                return PinReading(PinState.GONE) if pins is None else self._reader.read(pins, name, known, now)

        try:
            return self._calls(f"/pin {name}", read)
        except HangingError as error:
            return PinReading(PinState.UNKNOWN, why=str(error.strerror))

    def _take(self, readings: Mapping[str, PinReading], making: frozenset[str], now: float) -> PinScan:
        """Remember the readings of all pins, and return the result of the scan."""
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
        self._unknown = unknown
        reasons = {name: why for name, (why, _) in self._broken.items()} | unknown
        return PinScan(
            found={found.checkpoint.key: found for _, found in self._known.values()},
            broken=tuple(broken),
            unknown=unknown,
            unclaimed=frozenset(unclaimed),
            reasons=tuple((name, f"unusable pin: {why}") for name, why in reasons.items()),
            making=making,
        )

    def _open(self, stack: ExitStack) -> Folder | None:
        """Open the folder of pins, never through a link in its place; return None if it does not exist."""
        try:
            with open_folder(self._pins.parent) as state:
                return stack.enter_context(state.folder(self._pins.name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(error) from error

    def _names(self, pins: Folder | None) -> list[str]:
        try:
            return [] if pins is None else pins.names()
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> StorageError:
        """Return the error to raise if the folder of pins cannot be read."""
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return StorageError(f"{self._pins} is a link or a file, where the folder of pins is expected: move it away")
        return StorageError(f"cannot read the pins in {self._pins}: {error.strerror}")
