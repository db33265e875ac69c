"""Look for the directories of runs, and prepare runs to be served, in a thread: storage may hang.

`many_runs` owns the runs, and is told what is found.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sidecar.commands.served_run import ServedRun
from sidecar.errors import SidecarError, StorageError
from sidecar.publishing.plain_structlog import structlog
from sidecar.settings import Settings
from sidecar.settings.runs import Place, SharedSettings
from sidecar.system.bounded_calls import BoundedCalls, HangingError
from sidecar.system.clock import Clock
from sidecar.system.shortages import machine_shortage

_log = structlog.get_logger()

_MOST_HANGING: Final = 64  # directories whose storage does not answer
_AGAIN_SECONDS: Final = 1.0  # after which a call that hangs is asked for again


@dataclass(frozen=True, slots=True)
class Found:
    """Report the places of all runs that exist now."""

    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Report a run that can be served, or why it cannot."""

    place: Place
    run: ServedRun | SidecarError


@dataclass(frozen=True, slots=True)
class Delayed:
    """Report a run that cannot be prepared yet, because its storage does not answer."""

    place: Place
    reason: str


@dataclass(slots=True, kw_only=True)
class RunFinder:
    """Report the places of the runs to `post` regularly, and prepare runs when asked.

    `shared`: the settings of all runs. `make` makes a run of its settings and place.
    """

    shared: SharedSettings
    make: Callable[[Settings, Place], ServedRun]
    post: Callable[[Found | Prepared | Delayed], None]
    clock: Clock
    _asked: "queue.SimpleQueue[Place]" = field(default_factory=queue.SimpleQueue)
    _waiting: dict[str, Place] = field(default_factory=dict)  # by place: runs to prepare
    _scan_at: float = 0.0
    _calls: BoundedCalls = field(init=False)

    def __post_init__(self) -> None:
        self._calls = BoundedCalls(most_hanging=_MOST_HANGING, now=self.clock.now)

    def start(self) -> None:
        """Start the thread, which ends with the process."""
        threading.Thread(target=self._work, name="run-finder", daemon=True).start()

    def prepare(self, place: Place) -> None:
        """Prepare a run. One `Prepared` follows, unless its storage hangs."""
        self._asked.put(place)

    def _work(self) -> None:
        while True:
            self.scan()
            pause = _AGAIN_SECONDS if self._waiting else max(0.0, self._scan_at - self.clock.now())
            with contextlib.suppress(queue.Empty):
                self._asked.put(self._asked.get(timeout=pause))

    def scan(self) -> None:
        """Report the places if that is due, and prepare what waits."""
        if self.clock.now() >= self._scan_at:
            self._scan_at = self.clock.now() + self.shared.node.runs_scan_seconds
            try:
                self.post(Found(tuple(self._calls("runs", self.shared.places))))
            except OSError as error:  # it hangs, or cannot be read: what was found stays
                _log.warning("runs_not_listed", reason=str(error))
        while not self._asked.empty():
            place = self._asked.get_nowait()
            self._waiting[place.where] = place
        for place in list(self._waiting.values()):
            try:
                prepared: ServedRun | SidecarError = self._calls(place.where, partial(self._make, place))
            except HangingError as error:
                self.post(Delayed(place, str(error)))
                continue
            except Exception as error:  # noqa: BLE001 - one run must not hold up the others
                prepared = known_error(error)
            del self._waiting[place.where]
            self.post(Prepared(place, prepared))

    def _make(self, place: Place) -> ServedRun:
        return self.make(self.shared.settings_of(place), place)


def known_error(error: Exception) -> SidecarError:
    """Return an error for people: a bug is logged with its traceback."""
    if isinstance(error, SidecarError):
        return error
    if (shortage := machine_shortage(error)) is not None:
        return shortage
    if isinstance(error, OSError):
        return StorageError(f"{error.filename or 'storage'}: {error.strerror or error}")
    _log.error("run_broke", exc_info=error)
    return SidecarError(f"this is a bug, please report it with the log: {type(error).__name__}: {error}")
