"""Wake the daemon by file events in the checkpoint directory and the journal, and report the names to scan.

This module reads no files. Events only make scans earlier: network filesystems do not report the writes of other
machines, and the kernel's limits may forbid watching. So regular scans go on in any case, and a failure here is a line
of text, not an exception.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from watchdog import events
from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from sidecar.checkpoints.files import is_temporary

_QUIET: Final = ("", "opened", "closed_no_write")
"""Reading changes nothing, and this program itself reads these files."""

_CHANGES: Final = [
    each
    for each in vars(events).values()
    if isinstance(each, type) and issubclass(each, FileSystemEvent) and getattr(each, "event_type", "") not in _QUIET
]
"""The events that the kernel is asked for. An event of reading would wake three threads for each file that is read."""

_JOIN_SECONDS: Final = 5.0
_MOST_NAMES: Final = 10_000
_FOLDERS: Final = 4  # each takes two threads; scans find further models that are saved at the same time


class Watch:
    """Call `wake`, from another thread, whenever something in `root` changes. `wake` must not raise or block.

    Args:
        root: The directory to watch.
        wake: Called after each change.
        unless: Changes of names that begin with this are ignored.
        also: Further watches that start and stop with this one, and whose problems are not reported.
        folders: Whether to watch the newest few sub-folders, too. A model is saved into a folder, its marker last.
        most_names: With more names since the last scan, a scan of everything is not slower.
        depth: How many folders below `root` checkpoints may lie. `follow` selects the folders to watch.
        why_not: Returns why the events of a directory would be incomplete, or None. Called before it is watched.
        observer: Creates the observer of watchdog.

    Attributes:
        problem: One line that says why there are no events now, or None.
    """

    def __init__(
        self,
        root: Path,
        wake: Callable[[], None],
        *,
        unless: str | None = None,
        also: Sequence["Watch"] = (),
        folders: bool = False,
        depth: int = 0,
        most_names: int = _MOST_NAMES,
        why_not: Callable[[Path], str | None] = lambda _: None,
        observer: Callable[[], BaseObserver] = Observer,
    ) -> None:
        self._root = root
        self._handler = _Waker(root, wake, unless, self._enter if folders else None, depth, most_names)
        self._also = also
        self._why_not = why_not
        self._entered: deque[ObservedWatch] = deque()
        self._followed: dict[Path, ObservedWatch] = {}
        self._new_observer = observer
        self._observer: BaseObserver | None = None
        self._watched: tuple[int, int] | None = None
        self._refused: tuple[int, int] | None = None  # a directory that is not to be watched
        self.problem: str | None = "not started"

    def start(self) -> None:
        """Start to watch, if the directory exists and can be watched."""
        self.ensure()

    def ensure(self) -> None:
        """Start again if the directory appeared, vanished or was replaced. Each sweep calls this before it scans."""
        self._ensure()
        for watch in self._also:
            watch.ensure()

    def changed(self) -> frozenset[str] | None:
        """Return the paths, relative to `root`, that events reported since the last call, at most `depth` + 1 deep.

        Return None if events may have been missed. Then only a full scan finds all changes.
        """
        names = self._handler.take()
        return names if self.problem is None else None

    def follow(self, folders: Sequence[Path]) -> None:
        """Watch these few sub-folders from now on, instead of those of the last call."""
        if self._observer is None:
            return
        for folder in [watch for watch in self._followed if watch not in folders]:
            self._forget(self._followed.pop(folder))
        for folder in folders:
            if folder not in self._followed and (watch := self._schedule(folder)) is not None:
                self._followed[folder] = watch

    def stop(self) -> None:
        """Stop watching and end the threads, if there are any."""
        self._stop()
        for watch in self._also:
            watch.stop()

    def _ensure(self) -> None:
        """Start, stop or restart this watch by the present state of its directory."""
        try:
            stat = self._root.stat()
        except OSError as error:
            self._stop()
            self.problem = f"cannot watch {self._root}: {error.strerror}"
            return
        # The watch follows the folder, not its name. A new folder may get the inode number of a deleted one.
        identity = stat.st_dev, stat.st_ino
        if self._refused == identity or (self._watched == identity and self._is_alive()):
            return
        self._stop()
        if (why_not := self._why_not(self._root)) is not None:
            self.problem, self._refused = why_not, identity
            return
        self._begin()
        if self.problem is None:
            self._watched = identity

    def _stop(self) -> None:
        """Stop this watch only. Names that change from now on are missed."""
        observer, self._observer, self._watched, self._refused = self._observer, None, None, None
        self._entered.clear()
        self._followed.clear()
        self._handler.miss()
        self.problem = "stopped"
        if observer is not None:
            _end(observer)

    def _begin(self) -> None:
        """Start an observer of the directory, or note why that failed."""
        observer = None
        try:
            observer = self._new_observer()
            observer.schedule(self._handler, str(self._root), recursive=False, event_filter=_CHANGES)
            observer.start()
        except Exception as error:  # noqa: BLE001 - sweeps work without watchdog, whatever its error
            if observer is not None:
                _end(observer)
            self.problem = f"cannot watch {self._root}, only sweeps see changes: {error}"
            return
        self._observer, self.problem = observer, None

    def _is_alive(self) -> bool:
        """Return whether events still arrive: an emitter ends by itself when its directory is deleted."""
        observer = self._observer
        if observer is None or not observer.is_alive():
            return False
        emitters = [emitter for emitter in observer.emitters if emitter.watch.path == str(self._root)]
        return bool(emitters) and all(emitter.is_alive() for emitter in emitters)

    def _enter(self, folder: Path) -> None:
        """Watch a new sub-folder, in place of the oldest one if there are too many. Called by watchdog's thread."""
        while len(self._entered) >= _FOLDERS:
            self._forget(self._entered.popleft())
        if (watch := self._schedule(folder)) is not None:
            self._entered.append(watch)

    def _schedule(self, folder: Path) -> ObservedWatch | None:
        """Watch a sub-folder if possible, and return its watch; None if it cannot be watched."""
        observer = self._observer
        with contextlib.suppress(Exception):  # the folder may be gone, or the kernel's limit reached: sweeps scan it
            if observer is not None:
                return observer.schedule(self._handler, str(folder), recursive=False, event_filter=_CHANGES)
        return None

    def _forget(self, watch: ObservedWatch) -> None:
        """End the watch of a sub-folder, unless another equal watch needs it: watches of one path are equal."""
        if self._observer is not None and watch not in self._entered and watch not in self._followed.values():
            with contextlib.suppress(Exception):
                self._observer.unschedule(watch)


class _Waker(FileSystemEventHandler):
    """Collect the names in file events, and wake the daemon. Watchdog calls this in its own thread."""

    def __init__(
        self,
        root: Path,
        wake: Callable[[], None],
        unless: str | None,
        enter: Callable[[Path], None] | None,
        depth: int = 0,
        most_names: int = _MOST_NAMES,
    ) -> None:
        self._root, self._wake, self._unless, self._enter, self._depth = root, wake, unless, enter, depth
        self._most_names = most_names
        self._lock = threading.Lock()
        self._names: set[str] | None = None  # None: events were missed

    def take(self) -> frozenset[str] | None:
        """Return the names since the last call, or None if some were missed. From now on no name is missed."""
        with self._lock:
            names, self._names = self._names, set()
        return None if names is None else frozenset(names)

    def miss(self) -> None:
        """Note that events may have been missed."""
        with self._lock:
            self._names = None

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Note the names of an event and wake the daemon."""
        if self._is_temporary(event):
            return
        self._note(os.fsdecode(event.src_path), os.fsdecode(event.dest_path))
        if self._enter is not None and event.is_directory and event.event_type in ("created", "moved"):
            folder = Path(os.fsdecode(event.dest_path or event.src_path))
            if self._is_near(folder) and not is_temporary(folder.name, folder=True):
                self._enter(folder)  # before the scan, so that no file comes between the scan and the first event
        self._wake()

    def _note(self, *paths: str) -> None:
        """Remember the first parts of the paths, `depth` + 1 at most, also for changes further down."""
        within, few = f"{self._root}/", self._depth + 1
        names = {"/".join(path.removeprefix(within).split("/")[:few]) for path in paths if path.startswith(within)}
        with self._lock:
            if self._names is not None:
                self._names |= names
                if len(self._names) > self._most_names:
                    self._names = None

    def _is_near(self, folder: Path) -> bool:
        """Return whether a folder is near enough to `root` to contain checkpoints, or to be a model."""
        return folder.is_relative_to(self._root) and 1 <= len(folder.relative_to(self._root).parts) <= self._depth + 1

    def _is_temporary(self, event: FileSystemEvent) -> bool:
        """Return whether an event is about an ignored name. Events of folders accompany those of any name in them."""
        if self._unless is None:
            return False
        return event.is_directory or Path(str(event.src_path)).name.startswith(self._unless)


def _end(observer: BaseObserver) -> None:
    """Stop an observer and wait briefly for its threads."""
    with contextlib.suppress(Exception):  # half-started observers fail in several ways, and nothing is lost
        observer.stop()
        if observer.is_alive():
            observer.join(_JOIN_SECONDS)
