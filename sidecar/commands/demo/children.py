"""Start, watch and end the processes of a demo. No process outlives the demo, however that ends.

Each process leads a session of its own, so that Ctrl-C reaches only the demo, which then ends them in order. The kernel
kills them if the demo itself is killed. They must be started from the main thread: the parent-death signal fires when
the thread that started them ends.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from sidecar.errors import SidecarError

_PR_SET_PDEATHSIG: Final = 1
_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 8000
_ABORT_SECONDS: Final = 5.0  # when the demo is aborted: a daemon needs a moment to end its workers


class ChildFailedError(SidecarError):
    """A process of the demo ended, or did not end, as it should."""

    exit_code: ClassVar[int] = 1


@dataclass(slots=True)
class Child:
    """A running process and its log."""

    name: str  # as a person would call it
    log: Path
    process: "subprocess.Popen[bytes]"
    takes_sigterm: bool  # False: it ignores SIGTERM, as MultiWorkerMirroredStrategy makes it

    def ended(self) -> bool:
        """Return whether it ended with exit code 0; raises `ChildFailedError` if it ended in another way."""
        status = self.process.poll()
        if status:
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
            raise self.failure(how)
        return status == 0

    def failure(self, what: str) -> ChildFailedError:
        """Return the error that says what happened, with the end of the log."""
        return ChildFailedError(f"{self.name} {what}; {self.log} ends:\n{self.tail() or '(it is empty)'}")

    def tail(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(read_end(self.log, _TAIL_BYTES).splitlines()[-_TAIL_LINES:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group, unless it has ended: its number may belong to another process by then."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def wait(self, seconds: float) -> bool:
        """Wait at most so many seconds; return whether it ended."""
        try:
            self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True


@dataclass(slots=True)
class Children:
    """All processes of a demo; leaving the context ends those that still run."""

    started: list[Child] = field(default_factory=list)

    def start(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path, takes_sigterm: bool
    ) -> Child:
        """Start a process whose standard output and error go to `log`."""
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own programs, under our own interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_die_with_parent(),  # noqa: PLW1509 - safe: this program has one thread
            )
        child = Child(name, log, process, takes_sigterm)
        self.started.append(child)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave processes behind; this takes at most a few seconds.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for child in self.started:
                child.signal(signal.SIGTERM if child.takes_sigterm else signal.SIGKILL)
            deadline = time.monotonic() + _ABORT_SECONDS
            for child in self.started:
                if not child.wait(deadline - time.monotonic()):
                    child.signal(signal.SIGKILL)
                    child.process.wait()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def stop(children: Sequence[Child], seconds: float) -> None:
    """End daemons with SIGTERM, as a service manager does; raises `ChildFailedError` if one fails or is late."""
    for child in children:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for child in children:
        if not child.wait(deadline - time.monotonic()):
            raise child.failure(f"did not end within {seconds:.0f} s of SIGTERM")
        child.ended()


def read_end(path: Path, size: int) -> str:
    """Return the last bytes of a file as text; empty if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _die_with_parent() -> Callable[[], None]:
    """Return what a child runs before its program: a request to the kernel to be killed when this process ends."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()  # looked up here: after a fork as little as possible

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the request took effect
            os._exit(1)

    return ask
