"""Call shared storage from a thread of its own, so that a command does not hang for ever when the storage does.

The bound is on silence, not on the whole call: a long journal on a slow server is read to its end while it answers.
"""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

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
