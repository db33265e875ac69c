"""Show the progress of `sidecar eval` on standard error: a bar for each worker on a terminal, else lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console

from sidecar.commands.interrupts import Interrupts
from sidecar.commands.progress_rate import ProgressRate, duration
from sidecar.commands.terminal import is_screen
from sidecar.commands.waiting import busy_here
from sidecar.protocol.states import WorkerPhase
from sidecar.publishing.status import WorkerStatus
from sidecar.system.clock import Clock, SystemClock
from sidecar.system.plain_text import number, printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Show = Callable[[tuple[WorkerStatus, ...]], None]

_LINE_SECONDS: Final = 10.0  # between two lines, if there is no terminal
_LAST: Final = len(WorkerPhase)


@contextmanager
def shown_progress(
    framework: str,
    *,
    console: Console | None = None,
    clock: Clock | None = None,
    busy: Callable[[], str] = busy_here,
) -> Iterator[Show]:
    """Yield a function that shows the workers, with the rate of their batches and the time that is left.

    `busy`: returns a sentence if this machine has too much to do.
    """
    console, clock = console or Console(stderr=True), clock or SystemClock()
    if not is_screen(console):
        yield ProgressLines(framework, clock, lambda line: typer.echo(line, err=True), busy=busy).show
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - slow to import

    columns = (TextColumn("worker {task.fields[number]}"), TextColumn("{task.description:<18}"), BarColumn(16))
    counts = (TextColumn("{task.fields[counts]:<24}"), TimeElapsedColumn())
    bars = Progress(*columns, *counts, console=console, transient=True)
    with Interrupts().received(), bars as bar:  # a signal gives the cursor back, too
        yield ProgressBars(framework, clock, bar, busy=busy).show


def _never_busy() -> str:
    """Return no sentence, as if this machine had little to do."""
    return ""


class ProgressBars:
    """Show one bar for each worker, with its elapsed time."""

    def __init__(self, framework: str, clock: Clock, bar: "Progress", *, busy: Callable[[], str] = _never_busy) -> None:
        self._framework, self._clock, self._bar = framework, clock, bar
        self._busy, self._check_busy_at = busy, clock.now() + _LINE_SECONDS
        self._rates = WorkerRates()
        self._lines: dict[str, TaskID] = {}

    def show(self, workers: tuple[WorkerStatus, ...]) -> None:
        """Update the bars. Once, if it takes long, say that this machine is busy."""
        if self._clock.now() >= self._check_busy_at:
            self._check_busy_at = float("inf")
            if sentence := self._busy():
                self._bar.console.print(sentence)
        for index, worker in enumerate(workers):
            doing, total = phase_name(worker.state, self._framework), worker.total_batches
            if worker.worker not in self._lines:
                self._lines[worker.worker] = self._bar.add_task(doing, total=None, number=index, counts="")
            counts = self._rates.progress(worker, self._clock.now())
            self._bar.update(
                self._lines[worker.worker],
                description=doing,
                completed=worker.batches,
                total=total if worker.state == WorkerPhase.EVALUATE else None,
                counts=counts,
            )


class ProgressLines:
    """Write what the slowest worker does, every ten seconds. A quick evaluation writes nothing."""

    def __init__(
        self, framework: str, clock: Clock, write: Callable[[str], None], *, busy: Callable[[], str] = _never_busy
    ) -> None:
        self._framework, self._clock, self._write, self._busy = framework, clock, write, busy
        self._rates = WorkerRates()
        self._written_at = clock.now()

    def show(self, workers: tuple[WorkerStatus, ...]) -> None:
        """Write a line if it is time for one."""
        now = self._clock.now()
        progress = {worker.worker: self._rates.progress(worker, now) for worker in workers}
        slowest = min(workers, key=lambda worker: (_rank(worker.state), worker.batches), default=None)
        if slowest is None or now - self._written_at < _LINE_SECONDS:
            return
        self._written_at = now
        done = f" {progress[slowest.worker]}" if progress[slowest.worker] else ""
        whose = f", the slowest of {len(workers)} workers" if len(workers) > 1 else ""
        if why := self._busy():
            why, self._busy = f"; {why}", _never_busy  # once is enough
        self._write(printable(f"progress: {phase_name(slowest.state, self._framework)}{done}{whose}{why}"))


class WorkerRates:
    """Hold the rate of each worker in its phase."""

    def __init__(self) -> None:
        self._by_phase: dict[tuple[str, str], ProgressRate] = {}

    def progress(self, worker: WorkerStatus, now: float) -> str:
        """Note a status, and return its batches, their rate, and the time that is left, as far as they are known."""
        if not worker.batches:
            return ""
        rate = self._by_phase.setdefault((worker.worker, worker.state), ProgressRate())
        rate.note(worker.batches, now)
        total = "" if worker.total_batches is None else f"/{worker.total_batches}"
        per_second, left = rate.per_second(now), rate.seconds_left(worker.total_batches, now)
        speed = "" if per_second is None else f" {number(round(per_second, 2))}/s"
        return f"{worker.batches}{total}{speed}" + ("" if left is None else f" {duration(left)} left")


def phase_name(state: str, framework: str) -> str:
    """Return what a worker does, for people."""
    return f"imports {framework}" if state == WorkerPhase.IMPORT else state


def _rank(state: str) -> int:
    """Return the place of a phase in the order of `WorkerPhase`."""
    return next((rank for rank, phase in enumerate(WorkerPhase) if phase == state), _LAST)
