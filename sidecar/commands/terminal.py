"""Show people, on a terminal, the progress of `eval`, tables of results, and the reasons of failures."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from sidecar.protocol.records import Checkpoint, Result
from sidecar.system.clock import Clock
from sidecar.system.plain_text import broken_at_signs, counted, interval, number, one_line, printable

_QUIET_SECONDS: Final = 2.0  # before something is said about a command that takes long
_REPORT_SECONDS: Final = 0.2
_METRIC: Final = 30  # columns of a terminal that the name of a metric takes
_REASONS_SHOWN: Final = 3  # a wrong task fails every checkpoint in the same way; --json has all messages


def is_screen(console: Console) -> bool:
    """Return whether output can be drawn over: on a terminal that moves its cursor, whatever FORCE_COLOR says."""
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


@contextmanager
def elapsed(console: Console, doing: str) -> Iterator[None]:
    """Show on a terminal, below the output, what is being done and for how long."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - slow to import

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(doing, total=None)
        yield


@contextmanager
def reading_progress(console: Console, clock: Clock) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how far a journal was read, once that takes long; yield the function that is told.

    It is told the number of the plan that is read, and that of the last one, or 0 if none is known.
    """
    with ExitStack() as shown:
        status: Status | None = None
        due = clock.now() + _QUIET_SECONDS

        def report(plan: int, last: int) -> None:
            nonlocal due, status
            if not console.is_terminal or clock.now() < due:
                return
            text = f"reading the journal: plan {plan}" + (f" of {max(plan, last)}" if last else "")
            if status is None:
                status = shown.enter_context(console.status(text))
            status.update(text)
            due = clock.now() + _REPORT_SECONDS

        yield report


def print_result(checkpoint: Checkpoint, result: Result, saves: Path) -> None:
    """Print the numbers of one evaluation to standard output."""
    step = f", step {checkpoint.shown_step}" if checkpoint.shown_step else ""
    title = Text(printable(f"{checkpoint.name}{step}"))
    table = Table("eval set", "metric", "value", "95 % interval", title=title, title_justify="left")
    for eval_set, metrics in result.metrics.items():
        for name, value in metrics.items():
            metric = Text("\n".join(broken_at_signs(one_line(name), _METRIC)))
            table.add_row(Text(one_line(eval_set)), metric, number(value.number), interval(value.lower, value.upper))
    console = Console()
    console.print(table)
    examples = ", ".join(f"{count} examples of {name}" for name, count in result.counted().items())
    seconds = ", ".join(f"{phase} {duration:.2f} s" for phase, duration in result.phases.items())
    workers = counted(result.workers, "worker")
    console.print(Text(printable("; ".join(filter(None, (examples, workers, seconds))))))
    for warning in result.warnings():
        console.print(Text(f"warning: {printable(warning)}", style="yellow"), soft_wrap=True)
    for note in result.notes:
        console.print(Text(f"note: {printable(note)}"), soft_wrap=True)
    console.print(Text(printable(f"saved by each worker: {saves}")), soft_wrap=True)


def newest_reasons(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the newest distinct reasons of failures, in the order of the journal."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["message"] is not None:
            newest.pop((row["kind"], row["message"]), None)
            newest[row["kind"], row["message"]] = row
    return list(newest.values())[-_REASONS_SHOWN:]


def print_below_history(console: Console, lines: Iterable[str], reasons: Iterable[dict[str, Any]]) -> None:
    """Print the lines below the table, and the reasons of failures."""
    for line in lines:
        console.print(Text(line))
    for row in reasons:
        attempt = "" if row["attempt"] is None else f", attempt {row['attempt']}"
        kind = "" if row["kind"] is None else f": {row['kind']}"
        title = typer.style(printable(f"{row['checkpoint']}{attempt}: {row['status']}{kind}"), bold=True)
        typer.echo(f"\n{title}\n{printable(row['message'])}")
