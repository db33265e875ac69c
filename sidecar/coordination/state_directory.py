"""Decide whether a run may begin in a state directory, and whether missing state was deleted or is only unmounted.

A state directory inside the checkpoint directory is available whenever that is. One that lies elsewhere, or on its own
mount, may be unavailable while the checkpoints are there. A run that began on its bare mount point would evaluate all
of them again. So such a run leaves a marker next to the checkpoints, which names the run. The daemon's storage thread
calls this module.
"""

import secrets
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.coordination.run import JOURNAL_FOLDERS, RUN_PATH, SEGMENTS, Run
from sidecar.coordination.storage import Storage
from sidecar.coordination.unique_names import parse
from sidecar.errors import RecordError, RunReplacedError, SettingsError, StateUnavailableError, StorageError
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import SCHEMA
from sidecar.system import durable
from sidecar.system.bucket_folder import BucketFolder, BucketState, place_of
from sidecar.system.clock import Clock, SystemClock
from sidecar.system.confined import open_folder

MARKER: Final = ".sidecar-run-"
"""The prefix of the marker's name. Names of checkpoints never begin with a dot."""

_MARKER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class RunMarker:
    """Name the run that evaluates these checkpoints and, for people, its state directory, in the marker file."""

    run: str
    state_dir: str | None = None
    schema: int = SCHEMA


@dataclass(slots=True)
class StateDirectory:
    """Hold the checkpoint directory and the state directory of one run, as this machine sees them."""

    checkpoint_dir: Path
    run_dir: Path  # the run's state directory; its last component is the run's name
    run_lost_seconds: float = 10.0  # how long `run.json` must be away before it counts as deleted
    clock: Clock = field(default_factory=SystemClock)
    storage: Storage | None = None  # of the records, if `run_dir` is in a bucket
    _devices: tuple[int | None, int | None] = (None, None)  # of both directories, when the run was joined
    _unmarked: Run | None = None  # the run whose marker is written once there is a checkpoint directory
    _lost_since: float | None = None

    @property
    def marker(self) -> Path:
        """Return the path of the marker, whether it exists or not."""
        return self.checkpoint_dir / f"{MARKER}{self.run_dir.name}.json"

    def check_beginning(self) -> None:
        """Raise `StateUnavailableError` if a run began here whose state is unavailable, so that no other may begin."""
        found = self._read_marker()
        if found is not None:
            where = self._where(found)
            raise StateUnavailableError(
                f"{place_of(self.run_dir)} holds no run, but {self.marker} names one{_lies_in(found)}: its state is "
                f"missing. {f'Give {where}' if where else 'Mount it again'}; or delete that file to begin a new run"
            )

    def join(self, run: Run) -> None:
        """Join a run, and write its marker if the state directory may be unavailable one day.

        Raises `SettingsError` if the run belongs to another checkpoint directory, and `StateUnavailableError` if the
        checkpoint directory does not exist yet, so that its run is unknown.
        """
        self.check(run)
        self._devices = _device(self.checkpoint_dir), _device(self.run_dir)
        self._unmarked = run if self._is_apart() else None
        self.note_present()

    def check(self, run: Run) -> None:
        """Check a run without writing anything. Raises as `join`."""
        if isinstance(self.checkpoint_dir, BucketFolder):
            if run.checkpoint_dir not in (None, place_of(self.checkpoint_dir)):
                raise SettingsError(
                    f"{place_of(self.run_dir)} holds the run of {run.checkpoint_dir}, not of "
                    f"{place_of(self.checkpoint_dir)}: "
                    "give this job another name with --run, or another state_dir"
                )
            return
        if self._is_inside():
            return
        found = self._read_marker()
        named = None if found is None else found.run
        if named == run.run:
            return
        if named:
            raise SettingsError(
                f"the checkpoints in {self.checkpoint_dir} belong to run {named}{_lies_in(found)}, as {self.marker} "
                f"says, and {self.run_dir} holds run {run.run}: give {self._where(found) or 'the other state_dir'}, or "
                "another name with --run; or delete that file to let this run evaluate them"
            )
        if run.checkpoint_dir is None or self._is_same(run.checkpoint_dir):
            return
        if not self.checkpoint_dir.is_dir():
            raise StateUnavailableError(
                f"{self.checkpoint_dir} does not exist yet, so it is unknown whether the run in {self.run_dir} belongs "
                f"to it: that run was begun for {run.checkpoint_dir}"
            )
        raise SettingsError(
            f"{self.run_dir} holds the run of {run.checkpoint_dir}, not of {self.checkpoint_dir}: give this job "
            f"another name with --run, or another state_dir. If both are the same directory, write "
            f'{{"run":"{run.run}"}} into {self.marker}'
        )

    def note_present(self) -> None:
        """Note that the run exists now. Try once to write its marker, as soon as there is a checkpoint directory."""
        self._lost_since = None
        if self._unmarked is not None and self.checkpoint_dir.is_dir():
            with suppress(OSError):  # if the directory is read-only for this node, another node may write the marker
                self._write_marker(self._unmarked)
            self._unmarked = None

    def lost(self, run: str, found: str | None) -> StorageError:
        """Return the error for a `run.json` that is missing, or that belongs to another run, `found`.

        The error is `RunReplacedError` once that has lasted for `run_lost_seconds`: the run was deleted or replaced. If
        the state directory may only be unmounted, it is `StateUnavailableError` without an end.
        """
        if (waits_for := self._why_waiting(run, found)) is not None:
            self._lost_since = None
            return StateUnavailableError(waits_for)
        now = self.clock.now()
        self._lost_since = now if self._lost_since is None else self._lost_since
        where = place_of(self.run_dir)
        why = f"{where}/{RUN_PATH} was deleted" if found is None else f"{where} holds run {found} now"
        if now - self._lost_since < self.run_lost_seconds:
            return StateUnavailableError(f"{why}: a new run begins if that lasts for {self.run_lost_seconds:g} s")
        return RunReplacedError(f"{why}; it held run {run}")

    def _why_waiting(self, run: str, found: str | None) -> str | None:
        """Return a sentence if the run may come back by itself or through a person; `None` if it was deleted."""
        path = place_of(self.run_dir / RUN_PATH)
        if found is not None:
            marker = self._read_marker() if self._is_apart() else None
            if marker is None or marker.run != run:
                return None
            return f"{path} belongs to run {found}, but {self.marker} names run {run}: mount the state of run {run}"
        is_url = isinstance(self.checkpoint_dir, BucketFolder)  # the state lies on a disk of its own
        if self._is_apart() or (not is_url and _device(self.checkpoint_dir) != self._devices[0]):
            return (
                f"{path} is gone, as if its storage was unmounted: mount it again. To begin a new run, delete "
                f"{self.marker} if it exists, and restart this daemon"
            )
        if any(self._left_over()):
            return (
                f"{path} is gone, but records of its run exist: put that file back, which held "
                f'{{"run":"{run}","nonce":"…"}}; or delete {place_of(self.run_dir)} to begin a new run'
            )
        return None

    def _where(self, marker: RunMarker | None) -> str:
        """Return the option for the state directory that a marker names; empty if the run's folder is not there."""
        if marker is None or marker.state_dir is None:
            return ""
        if not (Path(marker.state_dir) / self.run_dir.name / RUN_PATH).is_file():
            return ""
        return f"--state-dir {shlex.quote(marker.state_dir)}"

    def _is_inside(self) -> bool:
        """Return whether the state directory lies below the checkpoint directory, and so belongs to it."""
        return self.run_dir.is_relative_to(self.checkpoint_dir)

    def _is_apart(self) -> bool:
        """Return whether the state may be unavailable while the checkpoints are available."""
        if isinstance(self.checkpoint_dir, BucketFolder):
            return False
        return not self._is_inside() or self._devices[0] != self._devices[1]

    def _is_same(self, path: str) -> bool:
        """Return whether a path is the checkpoint directory; other nodes may use another path for it."""
        if Path(path) == self.checkpoint_dir:
            return True
        try:
            return self.checkpoint_dir.samefile(path)
        except OSError:
            return False

    def _left_over(self) -> Iterator[str | Path]:
        """Yield the records of the run that still exist."""
        if isinstance(self.run_dir, BucketState) and self.storage is not None:
            for folder in (*JOURNAL_FOLDERS, SEGMENTS):
                yield from self.storage.names(folder)
            return
        for folder in JOURNAL_FOLDERS:
            yield from self.run_dir.glob(f"{folder}/*.json")
        yield from self.run_dir.glob(f"{SEGMENTS}/*.jsonl.gz")

    def _read_marker(self) -> RunMarker | None:
        """Return the marker, with an empty run if it cannot be decoded; `None` if there is no marker."""
        try:
            with open_folder(self.checkpoint_dir) as folder:
                data = folder.read(self.marker.name, _MARKER_BYTES)
        except FileNotFoundError:
            return None
        except OSError:
            return RunMarker("")
        try:
            return parse(RunMarker, self.marker.name, data)
        except RecordError:
            return RunMarker("")

    def _write_marker(self, run: Run) -> None:
        """Write the marker of a run, unless it exists. Raises OSError."""
        if (found := self._read_marker()) is not None and found.run == run.run:
            return
        with open_folder(self.checkpoint_dir) as folder:
            durable.replace(
                folder,
                self.marker.name,
                dumps(RunMarker(run.run, str(self.run_dir.parent))),
                temporary=f"{self.marker.name}.tmp-{secrets.token_hex(4)}",
                survives_crash=False,
            )


def _device(path: Path) -> int | None:
    """Return the number of the filesystem that holds a path; None if the path does not exist."""
    try:
        return path.stat().st_dev
    except FileNotFoundError:
        return None


def _lies_in(marker: RunMarker | None) -> str:
    """Return the place of a marker's state as part of a sentence; empty if it is unknown."""
    return "" if marker is None or marker.state_dir is None else f", whose state lies in {marker.state_dir}"
