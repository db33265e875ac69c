"""Show `sidecar status --watch` on a terminal: a screen that is drawn over the previous one.

The screen is the terminal's alternate one, as of `less` and `htop`, so a change of the size leaves nothing behind. The
terminal gets its own screen and its cursor back however the command ends, and then shows the last status as text.
"""

import contextlib
from collections.abc import Callable
from typing import Final, NoReturn

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sidecar.commands.interrupts import Interrupts
from sidecar.commands.status.collect import RunObserver, RunStatus
from sidecar.commands.status.live_view import live_view
from sidecar.commands.status.plan_progress import PlanProgress, WorkerLine
from sidecar.commands.status.render import lines
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.errors import StorageError
from sidecar.system.plain_text import printable

_LOOK_SECONDS: Final = 0.2  # between two looks at the size of the terminal, which cost nothing


def watch(
    console: Console,
    run: str,
    observer: RunObserver,
    timeout: StorageTimeout,
    *,
    every_seconds: float,
    pause: Callable[[float], None],
) -> NoReturn:
    """Show the status until a signal, or an exception of `pause`. An error of storage that a retry may fix is shown."""
    interrupts = Interrupts()
    screen = Screen(console, run, interrupts)
    with interrupts.received(), interrupts.suspendable():
        try:
            screen.open()
            while True:
                try:
                    screen.update(timeout.call(observer.collect))
                except StorageError as error:
                    if not error.retryable:
                        raise
                    screen.complain(str(error))
                screen.wait(every_seconds, pause)
        finally:
            interrupts.end()
            screen.close()


class Screen:
    """Draw statuses on a terminal. `close` gives the terminal back."""

    def __init__(self, console: Console, run: str, interrupts: Interrupts) -> None:
        self._console = console
        self._run = run
        self._interrupts = interrupts
        self._progress = PlanProgress()
        self._status: RunStatus | None = None
        self._workers: list[WorkerLine] = []
        self._complaint = ""
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def open(self) -> None:
        """Take the terminal."""
        with self._interrupts.held():
            self._live.start()
        self._draw()

    def update(self, status: RunStatus) -> None:
        """Draw a new status."""
        self._status, self._workers, self._complaint = status, self._progress.note(status), ""
        self._draw()

    def complain(self, why: str) -> None:
        """Draw the last status again, below the reason why there is no newer one."""
        self._complaint = why
        self._draw()

    def wait(self, seconds: float, pause: Callable[[float], None]) -> None:
        """Let time pass, and draw again if the terminal gets another size meanwhile."""
        size = self._console.size
        while seconds > 0:
            pause(min(_LOOK_SECONDS, seconds))
            seconds -= _LOOK_SECONDS
            if self._interrupts.wants_suspension:
                with self._interrupts.held():
                    self._live.stop()
                self._interrupts.suspend()
                self.open()
            if self._console.size != size:
                size = self._console.size
                self._draw()

    def close(self) -> None:
        """Leave the screen, and print the last status below what the terminal showed before."""
        self._live.stop()
        if self._status is not None:
            with contextlib.suppress(OSError):  # a terminal that was closed shows nothing
                self._console.print(Group(*lines(self._run, self._status)))

    def _draw(self) -> None:
        width, height = self._console.size
        shown: list[RenderableType] = []
        if self._complaint:
            complaint = Text(printable(self._complaint), style="red")
            shown.append(complaint)
            height -= len(complaint.wrap(self._console, width))
        if self._status is None:
            shown.append(Text(printable(f"run {self._run}: reading …")))
        else:
            shown += live_view(self._run, self._status, self._workers, width=width, height=height)
        with self._interrupts.held():
            self._live.update(Group(*shown), refresh=True)
