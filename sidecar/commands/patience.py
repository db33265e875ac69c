"""Asks shared storage from a thread of its own, so that a command does not hang for ever where storage does.

The bound is on silence, not on the whole: a long journal on a slow server is read to its end, as long as it answers.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from sidecar.agreement.storage import Storage
from sidecar.clock import Clock, SystemClock
from sidecar.errors import StorageError

T = TypeVar("T")


class Patience:
    """Waits for work on storage until that was silent for `seconds`; `where` is how its error names the place."""

    def __init__(self, seconds: float, where: str, clock: Clock | None = None) -> None:
        self.seconds = seconds
        self.where = where
        self.clock = clock or SystemClock()
        self._heard = self.clock.now()
        self._thread: threading.Thread | None = None  # not ended while storage hangs

    def heard(self) -> None:
        """Storage answered something."""
        self._heard = self.clock.now()

    def ask(self, work: Callable[[], T]) -> T:
        """Return what the work returns, or raise what it raises; `StorageError` if storage stays silent.

        What hangs is left to hang in its thread, which ends with the process. Nothing more is asked before it returns.
        """
        self.heard()
        if self._thread is not None:
            self._thread.join(self.seconds)
            if self._thread.is_alive():
                raise self._silent()
        answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_answer, args=(work, answers), name="asking", daemon=True)
        self.heard()
        self._thread.start()
        while (left := self._heard + self.seconds - self.clock.now()) > 0:
            try:
                found, error = answers.get(timeout=left)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            return found  # type: ignore[return-value]  # None only where the work returns that
        raise self._silent()

    def _silent(self) -> StorageError:
        return StorageError(
            f"{self.where} has not answered for {self.seconds:g} s (storage_timeout_seconds): is its server up, "
            "and its mount?"
        )


def _answer(work: Callable[[], T], answers: "queue.SimpleQueue[tuple[T | None, BaseException | None]]") -> None:
    try:
        answers.put((work(), None))
    except BaseException as error:  # noqa: BLE001 - it is raised where the work was asked for
        answers.put((None, error))


class HeardStorage:
    """Storage whose every answer is heard by who waits for it."""

    def __init__(self, storage: Storage, heard: Callable[[], None]) -> None:
        self._storage = storage
        self._heard = heard

    def create(self, path: str, data: bytes) -> None:
        """As `Storage.create`."""
        self._storage.create(path, data)
        self._heard()

    def read(self, path: str) -> bytes | None:
        """As `Storage.read`."""
        found = self._storage.read(path)
        self._heard()
        return found

    def replace(self, path: str, data: bytes) -> None:
        """As `Storage.replace`."""
        self._storage.replace(path, data)
        self._heard()

    def names(self, folder: str) -> list[str]:
        """As `Storage.names`."""
        found = self._storage.names(folder)
        self._heard()
        return found

    def modified(self, folder: str) -> Mapping[str, float]:
        """As `Storage.modified`."""
        found = self._storage.modified(folder)
        self._heard()
        return found

    def remove(self, path: str) -> None:
        """As `Storage.remove`."""
        self._storage.remove(path)
        self._heard()

    def sweep(self, folder: str, before: float) -> None:
        """As `Storage.sweep`."""
        self._storage.sweep(folder, before)
        self._heard()

    def sync(self, folder: str) -> None:
        """As `Storage.sync`."""
        self._storage.sync(folder)
        self._heard()
