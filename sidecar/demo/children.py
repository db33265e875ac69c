"""Start, watch and end the processes of a demo. None outlives it, however it ends.

Each leads a session of its own, so that Ctrl-C reaches the demo alone, which then ends them in order; the kernel kills
them if the demo itself is killed. They must be started from the main thread: the parent-death signal fires when the
thread that started them ends.
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
_HURRY_SECONDS: Final = 5.0  # when the demo breaks off: a daemon needs a moment to end its workers


class ChildFailedError(SidecarError):
    """A process of the demo ended, or did not end, as it should."""

    exit_code: ClassVar[int] = 1


@dataclass(slots=True)
class Child:
    """A running process and what it writes."""

    name: str  # as a person would call it
    log: Path
    process: "subprocess.Popen[bytes]"
    takes_sigterm: bool  # a process of MultiWorkerMirroredStrategy does not

    def ended(self) -> bool:
        """Whether it ended well; raises `ChildFailedError` if it ended otherwise."""
        status = self.process.poll()
        if status:
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
            raise self.failure(how)
        return status == 0

    def failure(self, what: str) -> ChildFailedError:
        """The error that says what happened, with the end of the log."""
        return ChildFailedError(f"{self.name} {what}; {self.log} ends:\n{self.tail() or '(it is empty)'}")

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(read_end(self.log, _TAIL_BYTES).splitlines()[-_TAIL_LINES:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group, unless it was reaped: the number may be another's by then."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within so long."""
        try:
            self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True


@dataclass(slots=True)
class Children:
    """Every process of a demo. As a context, it leaves none behind."""

    started: list[Child] = field(default_factory=list)

    def start(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path, takes_sigterm: bool
    ) -> Child:
        """Start one; everything that it says goes to `log`."""
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
        # A second Ctrl-C must not leave half of them; this does not take long.
        before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            for child in self.started:
                child.signal(signal.SIGTERM if child.takes_sigterm else signal.SIGKILL)
            deadline = time.monotonic() + _HURRY_SECONDS
            for child in self.started:
                if not child.wait(deadline - time.monotonic()):
                    child.signal(signal.SIGKILL)
                    child.process.wait()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def stop(children: Sequence[Child], seconds: float) -> None:
    """End daemons as their service manager would; raises `ChildFailedError` if one does not end well in time."""
    for child in children:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for child in children:
        if not child.wait(deadline - time.monotonic()):
            raise child.failure(f"did not end within {seconds:.0f} s of SIGTERM")
        child.ended()


def read_end(path: Path, size: int) -> str:
    """The last bytes of a file as text; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _die_with_parent() -> Callable[[], None]:
    """What a child does before it becomes another program: ask to be killed when this process ends."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()  # looked up here: after a fork as little as possible

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before this took effect
            os._exit(1)

    return ask
