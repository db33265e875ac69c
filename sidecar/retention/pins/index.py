"""Read the pins of a run: the checkpoints in them, and the pins that are broken or cannot be read.

A pin is read again only if it changed. Reading blocks for as long as the storage does. An error about one pin does not
affect the others: the last reading of the pin still holds, and the reason is reported.
"""

import contextlib
import errno
import json
import stat
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.files import File, list_files, read_file
from sidecar.checkpoints.formats import FORMATS, looked_for
from sidecar.checkpoints.inspect import as_checkpoint, identified
from sidecar.checkpoints.scan import BrokenPin, DiscoveredCheckpoint, PinScan, in_folder, parent_of, written_at
from sidecar.errors import CheckpointError, IncompleteError, RecordError, StorageError
from sidecar.protocol.codec import loads
from sidecar.protocol.records import SCHEMA, Checkpoint
from sidecar.retention.pins.names import PIN_RECORD, digest_in_name, is_pin
from sidecar.system.bounded_calls import Calls, HangingError, call_directly
from sidecar.system.confined import DEEPEST, Folder, open_folder
from sidecar.system.entry_errors import Entry, Meaning, meaning

_MAX_RECORD_BYTES: Final = 64 * 1024
_NEWER: Final = "it needs a newer release of this daemon"

Signature = tuple[int, int, int]


class PinState(StrEnum):
    """Classify the result of reading a pin."""

    WHOLE = "whole"
    GONE = "gone"
    BROKEN = "broken"  # every file can be read, but the content is not the expected checkpoint
    UNKNOWN = "unknown"  # storage does not let this node read the pin
    NEWER = "newer"  # a newer release made the pin, and this release does not understand it


class PinReading(NamedTuple):
    """Hold the result of reading a pin.

    `found` is the checkpoint in the pin. For a broken pin it is the checkpoint that the pin's record describes.
    """

    state: PinState
    signature: Signature | None = None
    found: DiscoveredCheckpoint | None = None
    why: str = ""


Known = tuple[Signature, DiscoveredCheckpoint]
"""The last reading of a pin that was whole: the signature of its folder, and its checkpoint."""


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


@dataclass(frozen=True, slots=True)
class PinReader:
    """Read single pins by the rules of the catalog, but in all formats, whatever `formats` says now."""

    rules: DiscoveryRules

    def read(self, pins: Folder, name: str, known: Known | None, now: float) -> PinReading:
        """Read the pin of a name in the folder of pins. `known`: its last reading, which holds if nothing changed."""
        again = False
        while True:
            try:
                return self._read(pins, name, known, now)
            except OSError as error:
                match meaning(Entry.PIN, error, again=again):
                    case Meaning.RETRY:
                        again = True
                        continue
                    case Meaning.GONE:
                        return PinReading(PinState.GONE)
                return PinReading(PinState.UNKNOWN, why=f"{error.filename}: {error.strerror}")

    def _read(self, pins: Folder, name: str, known: Known | None, now: float) -> PinReading:
        """Read the pin as `read`. Raises FileNotFoundError if it is gone, and OSError if it cannot be read."""
        status = pins.stat(name)
        if stat.S_ISLNK(status.st_mode):
            why = f"{pins.path / name} is a link where a folder is expected: remove the link"
            return PinReading(PinState.UNKNOWN, why=why)
        if not stat.S_ISDIR(status.st_mode):
            return PinReading(PinState.GONE)
        signature = status.st_ino, status.st_mtime_ns, status.st_ctime_ns
        if known is not None and known[0] == signature:
            return PinReading(PinState.WHOLE, signature, known[1])
        try:
            discovered = _as_recorded(self._content(pins.path / name, now), pins, name)
        except (CheckpointError, FileNotFoundError) as error:
            return self._broken(pins, name, str(error), now)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - files are untrusted, and must not end the daemon
            why = f"reading it failed, please report it: {type(error).__name__}: {error}"
            return self._broken(pins, name, why, now)
        if known is not None and (known[1].checkpoint, known[1].files) == (discovered.checkpoint, discovered.files):
            discovered = known[1]
        return PinReading(PinState.WHOLE, signature, discovered)

    def _content(self, folder: Path, now: float) -> DiscoveredCheckpoint:
        """Return the checkpoint in a pin by its content. Raises `IncompleteError` if the pin's name is another's.

        Files that another user put there do not count, even if they are damaged.
        """
        problems: list[CheckpointError] = []
        listing, parents = list_files(folder), self._parents(folder)
        pattern = self.rules.checkpoint_pattern
        by_pattern = () if pattern is None else looked_for(pattern=pattern)
        for format_ in (*looked_for(), *by_pattern):
            for candidate in format_.candidates(folder, listing):
                try:
                    inspection = format_.inspect(folder, candidate.name, step_key=self.rules.step_key)
                    inspection = identified(folder, inspection)
                except CheckpointError as error:
                    problems.append(error)
                    continue
                for parent in parents:
                    name = in_folder(parent, candidate.name)
                    checkpoint = as_checkpoint(format_, name, inspection, self.rules.step_expression)
                    if checkpoint.folder == folder.name:
                        return _found(checkpoint, folder, candidate.files, now)
        raise next(iter(problems), IncompleteError(f"{folder} does not hold the checkpoint it is named after"))

    def _parents(self, folder: Path) -> tuple[str, ...]:
        """Return the folders from which the checkpoint may come, as the pin's name and its record say."""
        names = list[str]()
        with contextlib.suppress(UnicodeDecodeError):
            names.append(unquote(folder.name.rpartition("@")[0], errors="surrogatepass"))
        with contextlib.suppress(CheckpointError, RecordError, FileNotFoundError):  # folder names are cut, records not
            names.append(loads(Checkpoint, read_file(folder, PIN_RECORD, limit=_MAX_RECORD_BYTES)).name)
        parents = dict.fromkeys(["", *map(parent_of, names)])
        return tuple(parent for parent in parents if not {"", ".", ".."} & {*parent.split("/")} or parent == "")

    def _broken(self, pins: Folder, name: str, why: str, now: float) -> PinReading:
        """Return the reading of a pin with unexpected content: broken, or of a newer release. Raises OSError."""
        pins.stat(name)
        with pins.folder(name) as folder:
            record = _require_readable(folder)
        if record is not None and _is_newer(record):
            return PinReading(PinState.NEWER, why=_NEWER)
        try:
            meant = None if record is None else loads(Checkpoint, record)
        except RecordError:
            meant = None
        if meant is None or meant.folder != name:
            return PinReading(PinState.BROKEN, why=why)
        return PinReading(PinState.BROKEN, found=_found(meant, pins.path / name, (), now), why=why)


def _as_recorded(discovered: DiscoveredCheckpoint, pins: Folder, name: str) -> DiscoveredCheckpoint:
    """Return a pin with the step in its record, if the step comes from names.

    A node compares the names that it has seen, so nodes may find different steps. All nodes use the step that the maker
    of the pin found.
    """
    if discovered.checkpoint.step_source not in ("name", "order"):
        return discovered
    try:
        with pins.folder(name) as folder:
            record = loads(Checkpoint, folder.read(PIN_RECORD, _MAX_RECORD_BYTES))
    except (OSError, RecordError):
        return discovered
    if record.key != discovered.checkpoint.key or record.step_source not in ("name", "order"):
        return discovered
    checkpoint = replace(discovered.checkpoint, step=record.step, step_source=record.step_source)
    return replace(discovered, checkpoint=checkpoint)


def _require_readable(folder: Folder, deepest: int = DEEPEST) -> bytes | None:
    """Return the pin's record. Raises OSError if any file in the pin cannot be read, as then nothing is certain."""
    record = None
    for name in folder.names():
        try:
            if stat.S_ISDIR(folder.stat(name).st_mode):
                if deepest:
                    with folder.folder(name) as inner:
                        _require_readable(inner, deepest - 1)
            elif name == PIN_RECORD:
                record = folder.read(name, _MAX_RECORD_BYTES)
            else:
                with folder.open_file(name) as file:
                    file.read(1)
        except FileNotFoundError:
            continue  # the pin is being removed, which does not make the other files unreadable
    return record


def _is_newer(record: bytes) -> bool:
    """Return whether a newer release wrote a pin's record, so that this release must not judge the pin."""
    try:
        parsed = json.loads(record)
    except (ValueError, RecursionError):
        return False
    if not isinstance(parsed, dict):
        return False
    schema, format_ = parsed.get("schema"), parsed.get("format")
    return (isinstance(schema, int) and schema > SCHEMA) or (isinstance(format_, str) and format_ not in FORMATS)


def _found(checkpoint: Checkpoint, folder: Path, files: tuple[File, ...], now: float) -> DiscoveredCheckpoint:
    """Return a checkpoint as discovered in a pin."""
    pinned = replace(checkpoint, pin=f"{folder.parent.name}/{folder.name}")
    return DiscoveredCheckpoint(
        checkpoint=pinned, folder=folder, written_at=written_at(files), seen_at=now, files=files
    )
