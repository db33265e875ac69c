"""The pins of a run, as one daemon reads them: which checkpoints they hold, and which of them hold nothing any more.

Read again only where they changed; it blocks for as long as the storage does.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import File, list_files, read_file
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.found import BrokenPin, Found, written_at
from sidecar.checkpoints.single import as_checkpoint
from sidecar.errors import CheckpointError, IncompleteError, RecordError, StorageError, VanishedError
from sidecar.records import Checkpoint, Key, loads

PIN_RECORD: Final = ".checkpoint.json"
"""What a pin holds, in its own words: still known when its content cannot be read any more."""

_MAX_RECORD_BYTES: Final = 64 * 1024
_MAKING: Final = re.compile(r"\.tmp-([0-9a-f]{12})-")  # as `pin` names them

_Signature = tuple[int, int, int]


class Held:
    """What lies in the folder of pins; it may not exist yet.

    Args:
        pins: the folder.
        corrupt_after_seconds: how long a pin must be unreadable before that is certain.
        step_key, step_pattern: as the catalog's.
        looked: called after each pin, since a look may take long.
    """

    def __init__(
        self,
        pins: Path,
        *,
        corrupt_after_seconds: float,
        step_key: str | None,
        step_pattern: re.Pattern[str],
        looked: Callable[[], None],
    ) -> None:
        self._pins = pins.absolute()
        self._corrupt_after_seconds = corrupt_after_seconds
        self._step_key = step_key
        self._step_pattern = step_pattern
        self._looked = looked
        self._known: dict[str, tuple[_Signature, Found]] = {}
        self._unreadable: dict[str, tuple[str, float]] = {}  # why, and since when
        self.found: Mapping[Key, Found] = {}  # the same object as long as the same pins are there
        self.broken: tuple[BrokenPin, ...] = ()
        self.reasons: tuple[tuple[str, str], ...] = ()  # of folders that cannot be read, why
        self.making: frozenset[str] = frozenset()  # the first 12 digits of digests of which some node makes a pin

    def look(self, now: float) -> set[Key]:
        """Look once; returns which checkpoints came, went or changed. Raises `StorageError` if nothing can be read."""
        folders = self._folders()
        known, self._known = self._known, {}
        unreadable, self._unreadable = self._unreadable, {}
        broken = []
        for entry in folders:
            self._looked()
            name, folder = entry.name, self._pins / entry.name
            try:
                stat = entry.stat(follow_symlinks=False)
                signature = stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns
                before, found = known.get(name, (None, None))
                if found is None or before != signature:
                    found = self._read(folder, now)
                self._known[name] = signature, found
            except (FileNotFoundError, VanishedError):
                continue  # unpinned meanwhile
            except OSError as error:
                self._unreadable[name] = f"unusable pin: {error}", now
            except CheckpointError as error:
                _, since = unreadable.get(name, ("", now))
                self._unreadable[name] = f"unusable pin: {error}", since
                if (meant := self._read_record(folder, now)) is not None:
                    broken.append(BrokenPin(meant, str(error), now - since >= self._corrupt_after_seconds))
        self.broken = tuple(broken)
        self.reasons = tuple((name, why) for name, (why, _) in self._unreadable.items())
        return self._note({found.checkpoint.key: found for _, found in self._known.values()})

    def _note(self, found: Mapping[Key, Found]) -> set[Key]:
        before = self.found
        changed = {key for key in found.keys() | before.keys() if found.get(key) is not before.get(key)}
        self.found = found if changed else before
        return changed

    def _folders(self) -> list["os.DirEntry[str]"]:
        try:
            with os.scandir(self._pins) as entries:
                folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            folders = []
        except OSError as error:
            raise StorageError(f"cannot read the pins in {self._pins}: {error.strerror}") from error
        self.making = frozenset(digest for entry in folders if (digest := being_made(entry.name)) is not None)
        return [entry for entry in folders if entry.name[0] != "."]

    def _read(self, folder: Path, now: float) -> Found:
        """What a pin holds; its name is a promise about its content, and the content is believed."""
        listing = list_files(folder)
        for format_ in FORMATS.values():
            for candidate in format_.candidates(folder, listing):
                inspection = format_.inspect(folder, candidate.name, step_key=self._step_key)
                checkpoint = as_checkpoint(format_, candidate.name, inspection, self._step_pattern)
                if checkpoint.folder == folder.name:
                    return self._found(checkpoint, folder, candidate.files, now)
        raise IncompleteError(f"{folder} does not hold the checkpoint it is named after")

    def _read_record(self, folder: Path, now: float) -> Found | None:
        """What a pin should hold, as its maker noted; None if that cannot be read either."""
        try:
            meant = loads(Checkpoint, read_file(folder, PIN_RECORD, limit=_MAX_RECORD_BYTES))
        except (CheckpointError, RecordError, OSError):
            return None
        return self._found(meant, folder, (), now) if meant.folder == folder.name else None

    def _found(self, checkpoint: Checkpoint, folder: Path, files: tuple[File, ...], now: float) -> Found:
        checkpoint = replace(checkpoint, pin=f"{self._pins.name}/{folder.name}")
        return Found(checkpoint, folder, written_at(files), now, files)


def being_made(name: str) -> str | None:
    """The first 12 digits of the digest of what a folder is to hold; None if it is no pin in the making."""
    match = _MAKING.match(name)
    return match[1] if match else None
