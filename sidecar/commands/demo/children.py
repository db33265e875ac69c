"""Start, watch and end the processes of a demo. No process outlives the demo, however that ends.

Each process leads a session of its own, so that Ctrl-C reaches only the demo, which then ends them in order. Their
guards kill them if the demo itself is killed, with the processes that torchrun starts in further sessions.
"""

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from sidecar.commands.daemon_process import read_end
from sidecar.errors import SidecarError
from sidecar.system.child import ChildProcess, start

_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 8000
_ABORT_SECONDS: Final = 5.0  # when the demo is aborted: a daemon needs a moment to end its workers


class ChildFailedError(SidecarError):
    """A process of the demo ended, or did not end, as it should."""

    exit_code: ClassVar[int] = 1


@dataclass(slots=True)
class Child:
    """Watch a running process and its log."""

    name: str  # as a person would call it
    log: Path
    process: ChildProcess
    takes_sigterm: bool  # False: it ignores SIGTERM, as MultiWorkerMirroredStrategy makes it

    def ended(self) -> bool:
        """Return whether it ended with exit code 0; raises `ChildFailedError` if it ended in another way."""
        status = self.process.wait_at_most(0.0)
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


@dataclass(slots=True)
class Children:
    """Watch all processes of a demo; leaving the context ends those that still run."""

    started: list[Child] = field(default_factory=list)

    def start(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path, takes_sigterm: bool
    ) -> Child:
        """Start a process whose standard output and error go to `log`."""
        with log.open("wb") as output:
            process = start(command, guarded="descendants", stdout=output, stderr=output, environment=environment)
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
                child.process.send_signal(signal.SIGTERM if child.takes_sigterm else signal.SIGKILL)
            deadline = time.monotonic() + _ABORT_SECONDS
            for child in self.started:
                if child.process.wait_at_most(deadline - time.monotonic()) is None:
                    child.process.kill()
                    child.process.wait()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def stop(children: Sequence[Child], seconds: float) -> None:
    """End daemons with SIGTERM, as a service manager does; raises `ChildFailedError` if one fails or is late."""
    for child in children:
        child.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for child in children:
        if child.process.wait_at_most(deadline - time.monotonic()) is None:
            raise child.failure(f"did not end within {seconds:.0f} s of SIGTERM")
        child.ended()
