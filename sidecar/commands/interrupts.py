"""Let signals end a command that draws on the terminal, but never in the middle of a change of the terminal."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedError(BaseException):
    """Raised in the main thread by a signal that ends the program."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts:
    """Raise an exception for a signal that ends the program: at once, or at the end of a `held` block.

    After the first one, further signals change nothing, so that the terminal is given back completely.
    """

    def __init__(self) -> None:
        self._held = False
        self._pending: int | None = None
        self._to_suspend = False

    @contextmanager
    def received(self) -> Iterator[None]:
        """Receive the signals. At the end those other than Ctrl-C end the process as if nobody had received them.

        A signal that the process was started to ignore, as `nohup` does, stays ignored.
        """
        heeded = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
        previous = {number: signal.signal(number, self._receive) for number in heeded}
        try:
            yield
        except EndedError as ended:
            signal.signal(ended.number, signal.SIG_DFL)
            os.kill(os.getpid(), ended.number)
            raise
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay the exception for a signal to the end of the block."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before
        if self._pending is not None and not before:
            self._raise(self._pending)

    @contextmanager
    def suspendable(self) -> Iterator[None]:
        """Note Ctrl-Z instead of stopping at once; `suspend` stops the process when the terminal was given back."""
        previous = signal.signal(signal.SIGTSTP, self._note_suspension)
        try:
            yield
        finally:
            signal.signal(signal.SIGTSTP, previous)

    @property
    def wants_suspension(self) -> bool:
        """Return whether Ctrl-Z was pressed and the process was not suspended yet."""
        return self._to_suspend

    def suspend(self) -> None:
        """Stop the process as Ctrl-Z does, and return when it continues."""
        self._to_suspend = False
        previous = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, previous)

    def end(self) -> None:
        """Raise no exception from now on."""
        self._held = True

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self._held:
            self._pending = self._pending or number
        else:
            self._raise(number)

    def _note_suspension(self, _: int, __: FrameType | None) -> None:
        self._to_suspend = True

    def _raise(self, number: int) -> None:
        self._held = True
        raise KeyboardInterrupt if number == signal.SIGINT else EndedError(number)
