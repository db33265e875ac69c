"""Make calls that may hang in threads of their own, and wait only for a moment for each.

A file that storage does not serve (a Lustre target that is down, a dead FUSE server) blocks the thread that opens it,
and no signal ends that. It may cost a thread and the node's knowledge of that entry, but never the heartbeat. A call
that takes too long continues in its thread. A later call for the same key returns its result.

    >>> calls = BoundedCalls()
    >>> calls("ckpt-5", lambda: 42)
    42
"""

import contextlib
import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

_FINISHED_KEPT: Final = 64
"""The most late results that are retained: nobody asks again for an entry that was removed meanwhile."""


class HangingError(OSError):
    """Report that storage has not answered for one entry. By its `errno`, `ETIMEDOUT`, the entry's state is unknown."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(errno.ETIMEDOUT, reason, what)


class Calls(Protocol):
    """Call functions that may hang. One key stands for one entry of storage, and for one function."""

    def __call__(self, key: str, function: Callable[[], T], /) -> T:
        """Return the result of `function`, raise its error, or raise `HangingError` if it has not ended yet."""


def call_directly(_: str, function: Callable[[], T], /) -> T:
    """Call the function in this thread, however long it takes: for tests, and where nothing else waits."""
    return function()


@dataclass(slots=True, kw_only=True)
class _Call:
    """Hold one call of a function, and its result once it has ended."""

    function: Callable[[], Any]
    began_at: float
    value: Any = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)
    cpu_clock: int | None = None  # of the thread that runs it
    cpu_began_at: float = 0.0

    def run(self) -> None:
        self.cpu_began_at = time.thread_time()
        self.cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            self.value = self.function()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is used
            self.error = error
        self.cpu_clock = None
        self.done.set()

    def cpu_seconds(self) -> float:
        """Return the CPU time that a call has taken which has not ended; 0 if that is unknown."""
        clock = self.cpu_clock
        with contextlib.suppress(OSError):  # the thread has just ended
            return 0.0 if clock is None else time.clock_gettime(clock) - self.cpu_began_at
        return 0.0


@dataclass(slots=True)
class BoundedCalls:
    """Make calls that may hang, for the one thread that owns this object."""

    # How long each call is waited for: far longer than working storage takes for one file, and shorter than a beat, so
    # that a node that meets a hanging file still beats in time
    patience_seconds: float = 1.0
    # The most calls that may hang at the same time. If so many hang, the cause is not one file.
    most_hanging: int = 4
    waits_again: bool = False  # whether a second request for a key waits as long as the first
    now: Callable[[], float] = time.monotonic  # returns seconds of a monotonic clock
    late: dict[str, _Call] = field(default_factory=dict)  # calls that took too long, until their results are asked for
    _inbox: "SimpleQueue[_Call | None] | None" = None  # the queue of the free thread

    def __call__(self, key: str, function: Callable[[], T], /) -> T:
        """Return the result of `function`, or the late result of an earlier call for this key.

        Raises `HangingError` if it has not ended within `patience_seconds`, or too many calls hang already.
        """
        call = self.late.get(key)
        if call is None:
            call = self._begin(key, function)
        elif self.waits_again:
            call.done.wait(self.patience_seconds)
        if not call.done.is_set():
            waited = self.now() - call.began_at
            is_working = 2 * call.cpu_seconds() > waited
            what = "reading it takes longer than" if is_working else "storage has not answered for"
            raise HangingError(key, f"{what} {waited:.0f} s; other entries are still read")
        self.late.pop(key, None)
        if call.error is not None:
            raise call.error
        value: T = call.value
        return value

    def __del__(self) -> None:
        """End the free thread, since a daemon of many runs makes these objects again and again."""
        if self._inbox is not None:
            self._inbox.put(None)

    @property
    def hanging(self) -> list[str]:
        """Return the keys of calls that have not ended."""
        return [key for key, call in self.late.items() if not call.done.is_set()]

    def _begin(self, key: str, function: Callable[[], Any]) -> _Call:
        """Begin a call and wait briefly for its end. If it hangs, the next call gets a new thread."""
        if len(self.hanging) >= self.most_hanging:
            raise HangingError(key, f"storage does not answer for {', '.join(self.hanging)}: no other entry is read")
        call, inbox = _Call(function=function, began_at=self.now()), self._inbox or self._start()
        inbox.put(call)
        if not call.done.wait(self.patience_seconds):
            inbox.put(None)  # its thread ends after this call
            self._inbox = None
            self.late[key] = call
            self._forget_finished()
        return call

    def _start(self) -> "SimpleQueue[_Call | None]":
        """Start a thread for calls, and return its queue."""
        inbox: SimpleQueue[_Call | None] = SimpleQueue()

        def run() -> None:
            while (call := inbox.get()) is not None:
                call.run()

        threading.Thread(target=run, name="bounded-call", daemon=True).start()
        self._inbox = inbox
        return inbox

    def _forget_finished(self) -> None:
        """Drop the oldest late results if there are too many."""
        finished = [key for key, call in self.late.items() if call.done.is_set()]
        for key in finished[:-_FINISHED_KEPT]:
            del self.late[key]
