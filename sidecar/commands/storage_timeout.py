"""Call shared storage from a thread of its own, so that a command does not hang for ever when the storage does.

The bound is on silence, not on the whole call: a long journal on a slow server is read to its end while it answers.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from sidecar.coordination.storage import Storage
from sidecar.errors import StorageError
from sidecar.system.clock import Clock, SystemClock

T = TypeVar("T")


class StorageTimeout:
    """Wait for calls of the storage until it was silent for `seconds`. `where` names the place in the error."""

    def __init__(self, seconds: float, where: str, clock: Clock | None = None) -> None:
        self.seconds = seconds
        self.where = where
        self.clock = clock or SystemClock()
        self._answered = self.clock.now()
        self._thread: threading.Thread | None = None  # not ended while storage hangs

    def answered(self) -> None:
        """Note that the storage answered something."""
        self._answered = self.clock.now()

    def call(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises, or `StorageError` if the storage stays silent.

        A call that hangs stays in its thread, which ends with the process. No other call begins before it returns.
        """
        self.answered()
        if self._thread is not None:
            self._thread.join(self.seconds)
            if self._thread.is_alive():
                raise self._silent()
        answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_answer, args=(work, answers), name="asking", daemon=True)
        self.answered()
        self._thread.start()
        while (left := self._answered + self.seconds - self.clock.now()) > 0:
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


class ActivityStorage:
    """Pass calls to a storage, and report each of its answers to the timeout that waits for it."""

    def __init__(self, storage: Storage, answered: Callable[[], None]) -> None:
        self._storage = storage
        self._answered = answered

    def create(self, path: str, data: bytes) -> None:
        """Create a file, as `Storage.create`."""
        self._storage.create(path, data)
        self._answered()

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """Read a file, as `Storage.read`."""
        found = self._storage.read(path, limit)
        self._answered()
        return found

    def replace(self, path: str, data: bytes, *, survives_crash: bool = False, instead_of: bytes | None = None) -> None:
        """Replace a file, as `Storage.replace`."""
        self._storage.replace(path, data, survives_crash=survives_crash, instead_of=instead_of)
        self._answered()

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, as `Storage.names`."""
        found = self._storage.names(folder)
        self._answered()
        return found

    def modified(self, folder: str) -> Mapping[str, float]:
        """Return when files were written, as `Storage.modified`."""
        found = self._storage.modified(folder)
        self._answered()
        return found

    def remove(self, path: str, *, holding: bytes | None = None) -> None:
        """Remove a file, as `Storage.remove`."""
        self._storage.remove(path, holding=holding)
        self._answered()

    def sweep(self, folder: str, before: float) -> None:
        """Remove unfinished writes, as `Storage.sweep`."""
        self._storage.sweep(folder, before)
        self._answered()

    def sync(self, folder: str) -> None:
        """Make names durable, as `Storage.sync`."""
        self._storage.sync(folder)
        self._answered()
