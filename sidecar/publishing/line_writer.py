"""Write the lines of the log to a stream, and never hold up the daemon: `log` gives each line to `LineWriter`.

Standard error may be a pipe whose reader has stopped, a terminal behind a dead connection, or a file on a server that
does not answer. A write then blocks for as long as that lasts. So a thread of its own writes, and the others wait for
it only while it is known to get on. Standard library only.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

_PATIENCE_SECONDS: Final = 1.0  # for the first line that is not taken; those that follow do not wait
_MOST_WAITING: Final = 1 << 20  # characters of the lines that wait
_END_SECONDS: Final = 2.0  # for the last lines, before the process ends


class LineWriter:
    """Write whole lines from all threads, and never raise: a full disk must not stop the daemon.

    `stream`: the stream. One without a descriptor, such as a text in memory, is written directly. `lost`: returns the
    line that tells how many lines were lost, because nobody took them.
    """

    def __init__(self, stream: TextIO, lost: Callable[[int], str]) -> None:
        self._stream, self._lost_line = stream, lost
        try:
            self._descriptor: int | None = stream.fileno()
        except (OSError, ValueError):  # it is not a file, or closed
            self._descriptor = None
        self._changed = threading.Condition()
        self._waiting: deque[str | int] = deque()  # lines, and how many were lost between them
        self._waiting_characters = 0
        self._given = self._taken = 0  # lines
        self._is_stuck = False
        self._thread: threading.Thread | None = None

    def msg(self, line: str) -> None:
        """Write one line. Return once it is written, or as soon as it is clear that the stream takes nothing now."""
        if self._descriptor is None:
            self._write_directly(line + "\n")
            return
        with self._changed:
            if self._waiting_characters + len(line) > _MOST_WAITING and self._waiting_characters:
                self._lose()
                return
            self._waiting.append(line)
            self._waiting_characters += len(line)
            self._given += 1
            place = self._given
            try:
                self._start()
            except RuntimeError:  # no thread can be started now: it waits for the next line
                return
            self._changed.notify_all()
            if not self._is_stuck:
                self._is_stuck = not self._changed.wait_for(lambda: self._taken >= place, _PATIENCE_SECONDS)

    debug = info = warning = error = critical = exception = msg

    def close(self) -> None:
        """Wait a moment for the lines that are left. `atexit` calls this."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None or self._taken == self._given, _END_SECONDS)

    def _lose(self) -> None:
        """Count a line that is lost at this place."""
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, int):
            self._waiting[-1] = last + 1
        else:
            self._waiting.append(1)

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="log", daemon=True)
            thread.start()
            self._thread = thread

    def _work(self) -> None:
        lost = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                line = self._waiting.popleft()
            if isinstance(line, int):
                lost += line
                continue
            lost = 0 if self._write(f"{self._lost_line(lost)}\n{line}" if lost else line) else lost + 1
            with self._changed:
                self._waiting_characters -= len(line)
                self._taken += 1
                self._is_stuck = False
                self._changed.notify_all()

    def _write(self, line: str) -> bool:
        """Write a line to the descriptor: a buffer would be flushed, and might block, when the interpreter ends.

        Return whether all of it was written.
        """
        assert self._descriptor is not None
        encoding, errors = getattr(self._stream, "encoding", None), getattr(self._stream, "errors", None)
        try:
            data = memoryview((line + "\n").encode(encoding or "utf-8", errors or "backslashreplace"))
            while data and not self._stream.closed:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except BlockingIOError:  # another process made the terminal or the pipe non-blocking
                    ready = select.poll()
                    ready.register(self._descriptor, select.POLLOUT)
                    ready.poll()
        except (OSError, ValueError):  # there is no other place to report it; ValueError: it cannot be encoded
            return False
        return not data

    def _write_directly(self, text: str) -> None:
        with self._changed:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):  # ValueError: the stream is closed
                return
