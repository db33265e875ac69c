"""Find the checkpoints to evaluate, in one process without a daemon, and pin each while it is read.

The evaluation loop calls this. It uses the daemon's catalog and pins, in a folder of pins that belongs to this process
alone. That folder lies in the checkpoint directory, because links are possible only within one filesystem; it is
hidden, and no scan looks into it. Imports no framework. The watch blocks for as long as the storage does.
"""

import contextlib
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final, Self

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.inspect import restore_path, verify
from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.errors import CheckpointError, MustCopyError, NoRoomError, StorageError, VanishedError
from sidecar.evaluation.backends.tensorflow.traits import TRAITS
from sidecar.protocol.records import Key, Settlement
from sidecar.retention.pins.index import PinIndex
from sidecar.retention.pins.pin import pin, unpin
from sidecar.system.clock import Clock
from sidecar.system.confined import Folder, open_folder
from sidecar.system.plain_text import one_line

QUIET_SECONDS: Final = 3.0
"""Time for which files must stay unchanged if their format has no sign of completeness: the daemon's default."""


class CheckpointWatch:
    """Watch one directory, which may not exist yet. Use it in a `with` block, which removes all pins at its end.

    `every`: whether each checkpoint is wanted, in order of discovery, instead of the latest one only.
    `interval_seconds`: the least time between two glances.
    """

    def __init__(
        self,
        directory: Path,
        *,
        every: bool,
        interval_seconds: float,
        clock: Clock,
        log: logging.Logger,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._every, self._interval_seconds, self._clock, self._log = every, interval_seconds, clock, log
        self._private = PrivateFolder(directory.absolute())
        self._pins_dir = self._private.path / "pins"
        rules = DiscoveryRules(quiet_seconds=quiet_seconds, formats=tuple(TRAITS.formats or ()))
        pins = PinIndex(self._pins_dir, rules)
        self._catalog = Catalog(directory, self._pins_dir, pins, rules=rules, clock=clock)
        self._scan = ScanResult()
        self._scanned_at = float("-inf")
        self._finished: set[Key] = set()
        self._corrupt: list[Settlement] = []
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        self._private.remove_abandoned(time.time())
        return self

    def __exit__(self, *_: object) -> None:
        self._private.remove()

    def next(self) -> DiscoveredCheckpoint | None:
        """Scan, and return the checkpoint to evaluate now; None if there is no new one."""
        self._look()
        for found in self._new() if self._every else reversed(self._new()):
            try:
                return self._pinned(found)
            except VanishedError:
                continue  # training deleted it
            except CheckpointError as error:  # it changes now: the next scan sees it again
                self._warn(f"{one_line(found.checkpoint.name)}: {error}")
                return None
        return None

    def path(self, found: DiscoveredCheckpoint) -> str:
        """Return the path to restore a checkpoint from: in its pin, or where training saved it."""
        return restore_path(found, found.folder)

    def is_unchanged(self, found: DiscoveredCheckpoint) -> bool:
        """Return whether the files of a checkpoint are still those that were found. A pin never changes."""
        if found.checkpoint.pin is not None:
            return True
        try:
            return verify(found.folder, found.checkpoint.name, found.checkpoint.format) == found.checkpoint.digest
        except VanishedError:
            return True  # deleted after it was read
        except (CheckpointError, StorageError):
            return False

    def finish(self, found: DiscoveredCheckpoint, *, is_evaluated: bool) -> None:
        """Never return this checkpoint again.

        If only the latest one is wanted and it was evaluated, those that were found before it are not returned either.
        """
        places = self._scan.places
        place = places.get(found.checkpoint.key, -1)
        self._finished.add(found.checkpoint.key)
        if is_evaluated and not self._every:
            self._finished |= {key for key in self._scan.by_key if places[key] < place}
        if found.checkpoint.pin is not None:
            try:
                unpin(found.checkpoint, self._pins_dir)
            except StorageError as error:
                self._warn(str(error))

    def glance(self) -> None:
        """Pin new checkpoints between two batches, if every checkpoint is wanted: training may delete them soon."""
        if self._every and self._clock.now() - self._scanned_at >= self._interval_seconds:
            self._look()

    def given_up(self) -> Collection[Settlement]:
        """Return the checkpoints whose files are damaged, each once."""
        given_up, self._corrupt = self._corrupt, []
        return given_up

    def problem(self) -> str:
        """Return why nothing was found, if that is known; otherwise an empty text."""
        if self._scan.missing:
            return "The directory does not exist."
        reasons = [f"{one_line(name)} is not used: {one_line(why)}." for name, why in self._scan.waiting[:3]]
        return " ".join([*reasons, *([f"{self._scan.below}."] if self._scan.below else [])])

    def _look(self) -> None:
        """Scan. An error of the storage changes nothing, and is tried again."""
        self._scanned_at = self._clock.now()
        self._private.touch()
        try:
            self._scan = self._catalog.scan()
        except StorageError as error:
            self._warn(str(error))
            return
        self._corrupt += self._scan.corrupt
        if self._every:
            for found in self._new():
                try:
                    self._scan = self._scan.with_changes({found.checkpoint.key: self._pinned(found)})
                except CheckpointError as error:  # `next` tries again; the reason may be gone then
                    self._log.debug("%s", error)

    def _new(self) -> list[DiscoveredCheckpoint]:
        return [found for key, found in self._scan.by_key.items() if key not in self._finished]

    def _pinned(self, found: DiscoveredCheckpoint) -> DiscoveredCheckpoint:
        """Return a checkpoint with its pin, or as it lies there if it cannot be pinned.

        Raises `CheckpointError` if it is gone or changes. Large files that cannot be linked are copied only if every
        checkpoint is wanted: the latest one is read at once, and rarely deleted before that.
        """
        if found.checkpoint.pin is not None:
            return found
        try:
            self._private.make()
            return pin(found, self._pins_dir, copies=self._every)
        except (MustCopyError, NoRoomError):
            return found
        except (StorageError, OSError) as error:
            self._warn(f"checkpoints are read without protection against deletion: {error}")
            return found

    def _warn(self, message: str) -> None:
        """Log a warning once."""
        if message not in self._warned:
            self._warned.add(message)
            self._log.warning("SidecarEvaluator: %s", message)


FOLDER: Final = ".sidecar-evaluator"
"""The folder in a checkpoint directory that holds the folders of all processes."""

_NAME: Final = re.compile(r"(?P<host>.+)-(?P<process>[0-9]+)-[0-9a-f]{8}")
_ABANDONED_SECONDS: Final = 24 * 3600.0  # a process touches its folder with each scan


class PrivateFolder:
    """Represent the folder of this process, which `make` creates."""

    def __init__(self, directory: Path) -> None:
        self._all = directory / FOLDER
        self._host = _name_of_host()
        self.path = self._all / f"{self._host}-{os.getpid()}-{secrets.token_hex(4)}"

    def make(self) -> None:
        """Create the folder if it is missing. Raises OSError, also if a link has its name."""
        with open_folder(self._all.parent) as directory, directory.folder(f"{FOLDER}/{self.path.name}", make=True):
            pass

    def touch(self) -> None:
        """Show that this process lives."""
        with contextlib.suppress(OSError):
            os.utime(self.path)

    def remove(self) -> None:
        """Remove the folder, and the one around it if no other process has one. A later process removes the rest."""
        with contextlib.suppress(OSError), self._opened() as folder:
            folder.remove(self.path.name)
        with contextlib.suppress(OSError), open_folder(self._all.parent) as directory:
            directory.remove_folder(FOLDER)

    def remove_abandoned(self, now: float) -> None:
        """Remove the folders of processes that were killed. `now`: seconds since 1970."""
        with contextlib.suppress(OSError), self._opened() as folder:
            for name in folder.names():
                with contextlib.suppress(OSError):
                    if self._is_abandoned(name, folder, now):
                        folder.remove(name)

    def _opened(self) -> Folder:
        """Open the folder of all processes. Raises OSError, also if it is a link."""
        with open_folder(self._all.parent) as directory:
            return directory.folder(FOLDER)

    def _is_abandoned(self, name: str, folder: Folder, now: float) -> bool:
        """Return whether the process of a folder is gone: known on this host, and elsewhere after a day of silence."""
        match = _NAME.fullmatch(name)
        if match is None:
            return False
        if match["host"] == self._host and not Path("/proc", match["process"]).exists():
            return True
        return now - folder.stat(name).st_mtime > _ABANDONED_SECONDS


def _name_of_host() -> str:
    """Return a name within which process numbers are unique: containers may share the name of their host."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return f"{re.sub(r'[^a-zA-Z0-9.]', '_', socket.gethostname())}_{namespace}"
