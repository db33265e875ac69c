"""Remove what workers saved and is no longer retained, and measure what is.

Others may write there, too: every folder is opened by its name in the one above, and a link is followed nowhere.
"""

import contextlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from sidecar.protocol.records import Plan
from sidecar.retention.saves.old_evaluations import OldEvaluations
from sidecar.retention.saves.retention import CleanupRequest, CleanupResult
from sidecar.system.bounded_calls import Calls, HangingError, call_directly
from sidecar.system.confined import Folder, open_folder
from sidecar.system.entry_errors import Entry, Meaning, meaning

_STATES: Final = "states.json"  # what a worker found: small, and retained longer
_WORKERS: Final = "worker-"
_DEEPEST: Final = 16  # folders in each other that are measured: what workers save has three


@dataclass(frozen=True, slots=True)
class ArtifactCleanup:
    """Clean up the folder `evaluations` of a run."""

    root: Path  # the run's state directory
    calls: Calls = call_directly  # makes calls that may hang
    old: OldEvaluations | None = None  # removes folders of old evaluations; None: they stay

    def store(self, _: Plan, /) -> bool:
        """Return that the saves of all nodes are visible to all: they share this folder."""
        return True

    def tidy(self, tidying: CleanupRequest) -> CleanupResult:
        """Remove what failed plans left, and what is no longer kept; measure what is to be measured.

        Metric states stay until the whole folder is old. What cannot be removed or measured stays, and is reported:
        nothing waits for it. A link in the place of a folder stays as well: whoever put it there has to take it away.
        """
        failed, sizes, unmeasured = dict[str, str](), dict[str, int](), list[str]()
        for path in (*tidying.drop, *tidying.thin):
            errors = _Errors()
            with errors.noted():
                errors = self.calls(f"tidy {path}", partial(self._remove, path, drop=path in tidying.drop))
            if errors.first is not None:
                failed[path] = f"cannot tidy {self.root / path}: {errors.first}"
        for path in tidying.measure:
            errors, sizes[path] = _Errors(), 0
            with errors.noted():
                sizes[path], errors = self.calls(f"measure {path}", partial(self._measure, path))
            if errors.first is not None:
                unmeasured.append(f"cannot measure all of {self.root / path}: {errors.first}")
        removed, why = 0, None
        if tidying.retained is not None and self.old is not None:
            try:
                removed, why = self.calls("old evaluations", partial(self.old.remove, tidying.retained))
            except HangingError as error:
                why = error.strerror
        why = None if why is None else f"cannot remove old evaluations in {self.root / 'evaluations'}: {why}"
        return CleanupResult(sizes=sizes, failed=failed, unmeasured=tuple(unmeasured), old=removed, old_failed=why)

    def _remove(self, path: str, *, drop: bool) -> "_Errors":
        errors = _Errors()
        with errors.noted(), open_folder(self.root) as root:
            _drop(root, path) if drop else _thin(root, path, errors)
        return errors

    def _measure(self, path: str) -> tuple[int, "_Errors"]:
        errors, size = _Errors(), 0
        with errors.noted(), open_folder(self.root) as root, root.folder(path) as folder:
            size = sum(_bytes_below(worker, errors, _DEEPEST) for worker in _workers(folder, errors))
        return size, errors


@dataclass(slots=True)
class _Errors:
    """Hold the first error about entries that are there."""

    first: str | None = None

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Go on whatever one entry says."""
        try:
            yield
        except OSError as error:
            self.note(error)

    def note(self, error: OSError) -> None:
        """Keep it, unless the entry is gone: another node tidies, too."""
        if meaning(Entry.SAVE, error, again=True) is not Meaning.GONE:
            self.first = self.first or str(error)


def _drop(root: Folder, path: str) -> None:
    """Remove the folder of a plan with all in it."""
    above, _, name = path.rpartition("/")
    with root.folder(above) as folder:
        with folder.folder(name):  # nothing else is a plan's
            pass
        folder.remove(name)


def _thin(root: Folder, path: str, errors: _Errors) -> None:
    with root.folder(path) as folder:
        for worker in _workers(folder, errors):
            for name in _names(worker, errors):
                if name == _STATES:
                    continue
                with errors.noted():
                    worker.remove(name)


def _workers(folder: Folder, errors: _Errors) -> Iterator[Folder]:
    """Open the folders of a plan's workers, one after the other."""
    for name in folder.names():
        if name.startswith(_WORKERS):
            with errors.noted(), folder.folder(name) as worker:
                yield worker


def _names(folder: Folder, errors: _Errors) -> list[str]:
    try:
        return folder.names()
    except OSError as error:
        errors.note(error)
        return []


def _bytes_below(folder: Folder, errors: _Errors, deepest: int) -> int:
    size = 0
    for name in _names(folder, errors):
        with errors.noted():
            there = folder.stat(name)
            if stat.S_ISREG(there.st_mode):
                size += there.st_size
            elif stat.S_ISDIR(there.st_mode) and deepest > 0:
                with folder.folder(name) as below:
                    size += _bytes_below(below, errors, deepest - 1)
    return size
