"""File events from the checkpoint directory and the journal: they only wake the daemon, which then looks.

Nothing is read here. The only importer of watchdog. Events are an accelerator: network filesystems do not deliver those
of other machines, and the kernel's limits may forbid watching, so a sweep looks anyway and every failure here is a line
of text, not an exception.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

_QUIET: Final = ("opened", "closed_no_write")  # reading changes nothing, and this program reads here itself
_JOIN_SECONDS: Final = 5.0


class Watch:
    """Calls `wake`, from a thread of its own, whenever something in `root` changes; `wake` must not raise or block.

    `problem` says in one line why there are no events now, or is None. Names that begin with `unless` wake nobody. The
    watches `beside` begin and end with this one; that one of them has a problem is not told.
    """

    def __init__(
        self,
        root: Path,
        wake: Callable[[], None],
        *,
        unless: str | None = None,
        beside: Sequence["Watch"] = (),
        observer: Callable[[], BaseObserver] = Observer,
    ) -> None:
        self._root = root
        self._handler = _Waker(wake, unless)
        self._beside = beside
        self._new_observer = observer
        self._observer: BaseObserver | None = None
        self._watched: tuple[int, int] | None = None
        self.problem: str | None = "not started"

    def start(self) -> None:
        """Begin, if the directory can be watched already."""
        self.ensure()

    def ensure(self) -> None:
        """Begin again if the directory appeared, vanished or was replaced; each sweep calls this before it looks."""
        self._ensure()
        for each in self._beside:
            each.ensure()

    def stop(self) -> None:
        """End the threads; without any this does nothing."""
        self._stop()
        for each in self._beside:
            each.stop()

    def _ensure(self) -> None:
        try:
            stat = self._root.stat()
        except OSError as error:
            self._stop()
            self.problem = f"cannot watch {self._root}: {error.strerror}"
            return
        # The watch follows the folder, not its name; and a new folder may get the number of the one that was deleted.
        if self._watched == (stat.st_dev, stat.st_ino) and self._is_alive():
            return
        self._stop()
        self._begin()
        if self.problem is None:
            self._watched = stat.st_dev, stat.st_ino

    def _stop(self) -> None:
        observer, self._observer, self._watched = self._observer, None, None
        self.problem = "stopped"
        if observer is not None:
            _end(observer)

    def _begin(self) -> None:
        observer = None
        try:
            observer = self._new_observer()
            observer.schedule(self._handler, str(self._root), recursive=False)
            observer.start()
        except Exception as error:  # noqa: BLE001 - whatever watchdog met, the sweep goes on without it
            if observer is not None:
                _end(observer)
            self.problem = f"cannot watch {self._root}, only sweeps see changes: {error}"
            return
        self._observer, self.problem = observer, None

    def _is_alive(self) -> bool:
        """An emitter ends by itself when its directory is deleted."""
        observer = self._observer
        return observer is not None and observer.is_alive() and all(one.is_alive() for one in observer.emitters)


class _Waker(FileSystemEventHandler):
    def __init__(self, wake: Callable[[], None], unless: str | None) -> None:
        self._wake, self._unless = wake, unless

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Called by watchdog."""
        if event.event_type not in _QUIET and not self._is_temporary(event):
            self._wake()

    def _is_temporary(self, event: FileSystemEvent) -> bool:
        """Whether it is about such a name; that the folder changed is told beside, of whatever name."""
        if self._unless is None:
            return False
        return event.is_directory or Path(str(event.src_path)).name.startswith(self._unless)


def _end(observer: BaseObserver) -> None:
    with contextlib.suppress(Exception):  # half-started observers fail in several ways, and nothing is lost
        observer.stop()
        if observer.is_alive():
            observer.join(_JOIN_SECONDS)
