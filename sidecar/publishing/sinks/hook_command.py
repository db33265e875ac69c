"""Run the command of a hook: the event as JSON on its standard input, within a time limit, without a shell.

The command leads its own session, so that its children end with it. They end when it does, at the time limit, and with
the daemon, however that ends: see `sidecar.system.child`.
"""

import errno
import os
import selectors
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.publishing.sinks.sink import SinkUnavailableError
from sidecar.system.child import PIPE, STDOUT, ChildProcess, start
from sidecar.system.plain_text import one_line

_OUTPUT_BYTES: Final = 2000  # of the end of the output, which is part of the reason of a failure
_READ_BYTES: Final = 1 << 16
_PAUSE_SECONDS: Final = 0.05  # between two checks whether the command has ended
_READ_PAUSE_SECONDS: Final = 0.005  # between two reads, so that one that prints without end takes little of the CPU


@dataclass(slots=True)
class HookCommand:
    """Run a command for each event. One thread calls `send`, another one may call `close`."""

    command: Sequence[str]  # the program and its arguments
    timeout_seconds: float  # time after which the command is killed, with all processes that it started in its session
    _closed: threading.Event = field(default_factory=threading.Event)

    @property
    def shown(self) -> str:
        """Return the program, without its arguments: they may hold a password."""
        return self.command[0]

    def send(self, body: bytes, _id: str) -> None:
        """Run the command. Exit code 0 means that it has taken the event.

        Raises `SinkUnavailableError` if it could not be started, failed, or was killed at its time limit.
        """
        child = self._start(body)
        try:
            ended, tail = self._wait(child)
        finally:
            child.close()
        code = child.wait()
        if not ended:
            why = "the daemon ends" if self._closed.is_set() else f"it ran for {self.timeout_seconds:g} s"
            raise SinkUnavailableError(f"{self.shown} was killed: {why}{_told(tail)}")
        if code != 0:
            how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
            raise SinkUnavailableError(f"{self.shown} {how}{_told(tail)}")

    def close(self) -> None:
        """Kill the command that runs now, and those to come."""
        self._closed.set()

    def _start(self, body: bytes) -> ChildProcess:
        """Start the command. Raises `SinkUnavailableError`."""
        # In memory: a pipe would block if the command does not read, and a disk may be full.
        with os.fdopen(os.memfd_create("event"), "w+b") as event:
            event.write(body)
            event.seek(0)
            try:
                if shutil.which(self.command[0]) is None:  # the shell that becomes the command would say it less well
                    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))  # noqa: TRY301 - as the system does
                return start(self.command, guarded="group", stdin=event, stdout=PIPE, stderr=STDOUT)
            except (OSError, ValueError) as error:  # ValueError: a null character
                why = error.strerror if isinstance(error, OSError) else error
                raise SinkUnavailableError(f"{self.shown} cannot be started: {why}") from error

    def _wait(self, child: ChildProcess) -> tuple[bool, bytes]:
        """Read the output until the command has ended; return whether it has, and the end of what it printed."""
        end, tail, output = time.monotonic() + self.timeout_seconds, b"", child.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while not (ended := child.has_ended()) and time.monotonic() < end and not self._closed.is_set():
                child.renew_guard()
                if not selector.get_map():
                    self._closed.wait(_PAUSE_SECONDS)
                elif selector.select(_PAUSE_SECONDS):
                    read = os.read(output.fileno(), _READ_BYTES)
                    tail = (tail + read)[-_OUTPUT_BYTES:]
                    if not read:  # the command closed its output, and runs on
                        selector.unregister(output)
                    self._closed.wait(_READ_PAUSE_SECONDS)
            if selector.get_map() and selector.select(0):
                tail = (tail + os.read(output.fileno(), _READ_BYTES))[-_OUTPUT_BYTES:]
        return ended, tail


def _told(tail: bytes) -> str:
    text = tail.decode(errors="replace").strip()
    return f"; it printed: {one_line(text)}" if text else ""
