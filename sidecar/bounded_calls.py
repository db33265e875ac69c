"""Calls that may hang, each in a thread that is waited for only for a moment.

A file that storage does not serve (a Lustre target that is down, a dead FUSE server) blocks the thread that opens it in
a state that no signal ends. It may cost a thread and what this node knows of that entry, but never the heartbeat. A
call that takes too long is left to its thread; its result is returned when the same key is asked for later.

    >>> calls = BoundedCalls()
    >>> calls("ckpt-5", lambda: 42)
    42
"""

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

_FINISHED_KEPT: Final = 64
"""Late results that are kept until somebody asks: nobody asks again for an entry that was removed meanwhile."""


class HangingError(OSError):
    """The storage has not answered for one entry; its `errno` is `ETIMEDOUT`, so it is unknown, and no verdict."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(errno.ETIMEDOUT, reason, what)


class Calls(Protocol):
    """Calls a function for a key; one key stands for one entry, and for one function."""

    def __call__(self, key: str, function: Callable[[], T], /) -> T:
        """Return what `function` returns, raise what it raises, or `HangingError` if it has not come to an end."""
        ...


def call_directly(_: str, function: Callable[[], T], /) -> T:
    """Call in this thread, however long it takes: for tests, and where nothing else waits."""
    return function()


@dataclass(slots=True)
class _Call:
    function: Callable[[], Any]
    began_at: float
    value: Any = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            self.value = self.function()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self.error = error
        self.done.set()


@dataclass(slots=True)
class BoundedCalls:
    """Owned by one thread, which alone calls it.

    Args:
        patience_seconds: How long a call is waited for. Far more than storage that works takes for one file, and less
            than a beat, so that a node that meets a hanging file still beats in time.
        most_hanging: Calls that may hang at the same time. When so many do, it is the storage and not a file.
        waits_again: Whether a second request for a key waits for as long as the first.
        now: seconds of a monotonic clock.
    """

    patience_seconds: float = 1.0
    most_hanging: int = 4
    waits_again: bool = False
    now: Callable[[], float] = time.monotonic
    _inbox: "SimpleQueue[_Call | None] | None" = None  # of the thread that is free
    _late: dict[str, _Call] = field(default_factory=dict)

    def __call__(self, key: str, function: Callable[[], T], /) -> T:
        """Return what `function` returns, or the late result of an earlier call for this key.

        Raises:
            HangingError: it has not come to an end within `patience_seconds`, or nothing more may be begun.
        """
        call = self._late.get(key)
        if call is None:
            call = self._begin(key, function)
        elif self.waits_again:
            call.done.wait(self.patience_seconds)
        if not call.done.is_set():
            waited = self.now() - call.began_at
            raise HangingError(key, f"storage has not answered for {waited:.0f} s; other entries go on")
        self._late.pop(key, None)
        if call.error is not None:
            raise call.error
        value: T = call.value
        return value

    @property
    def hanging(self) -> list[str]:
        """The keys of calls that have not come to an end."""
        return [key for key, call in self._late.items() if not call.done.is_set()]

    def _begin(self, key: str, function: Callable[[], Any]) -> _Call:
        if len(self.hanging) >= self.most_hanging:
            raise HangingError(key, f"storage does not answer for {', '.join(self.hanging)}: nothing more is begun")
        call, inbox = _Call(function, self.now()), self._inbox or self._start()
        inbox.put(call)
        if not call.done.wait(self.patience_seconds):
            inbox.put(None)  # its thread ends after this call, whenever that is
            self._inbox = None
            self._late[key] = call
            self._forget_finished()
        return call

    def _start(self) -> "SimpleQueue[_Call | None]":
        inbox: SimpleQueue[_Call | None] = SimpleQueue()

        def run() -> None:
            while (call := inbox.get()) is not None:
                call.run()

        threading.Thread(target=run, name="bounded-call", daemon=True).start()
        self._inbox = inbox
        return inbox

    def _forget_finished(self) -> None:
        finished = [key for key, call in self._late.items() if call.done.is_set()]
        for key in finished[:-_FINISHED_KEPT]:
            del self._late[key]
