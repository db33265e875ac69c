"""What `sidecar eval` shows a person: a progress bar while it works, a table when it is done."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sidecar.records import Checkpoint, Result, Value
from sidecar.status import WorkerStatus

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Show = Callable[[tuple[WorkerStatus, ...]], None]


@contextmanager
def shown_progress() -> Iterator[Show]:
    """One line per worker on standard error, on a terminal; nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415 - slow to import

    console = Console(stderr=True)
    columns = (TextColumn("worker {task.fields[number]}"), TextColumn("{task.description:<10}"), BarColumn())
    with Progress(
        *columns, MofNCompleteColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        lines: dict[str, TaskID] = {}
        yield lambda workers: _update(bar, lines, workers)


def _update(bar: "Progress", lines: "dict[str, TaskID]", workers: tuple[WorkerStatus, ...]) -> None:
    for number, worker in enumerate(workers):
        if worker.worker not in lines:
            lines[worker.worker] = bar.add_task(worker.state, total=None, number=number)
        bar.update(lines[worker.worker], description=worker.state, completed=worker.batches, total=worker.total_batches)


def print_result(checkpoint: Checkpoint, result: Result, saves: Path, *, as_json: bool) -> None:
    """The numbers, on standard output."""
    if as_json:
        body = {
            "checkpoint": checkpoint.name,
            "digest": checkpoint.digest,
            "step": checkpoint.step,
            **asdict(result),
            "saves": [str(path) for path in sorted(saves.glob("worker-*"))],
        }
        typer.echo(json.dumps(body, indent=1, allow_nan=False))
        return
    step = "" if checkpoint.step is None else f", step {checkpoint.step}"
    table = Table(
        "eval set", "metric", "value", "95 % interval", title=f"{checkpoint.name}{step}", title_justify="left"
    )
    for eval_set, metrics in result.metrics.items():
        for name, value in metrics.items():
            table.add_row(Text(eval_set), Text(name), _number(value), _interval(value))
    console = Console()
    console.print(table)
    examples = ", ".join(f"{count} examples of {name}" for name, count in result.examples.items())
    seconds = ", ".join(f"{name} {each:.2f} s" for name, each in result.phases.items())
    console.print(f"{examples}; {result.workers} workers; {seconds}", highlight=False)
    console.print(f"saved by each worker: {saves}", highlight=False, soft_wrap=True)


def _number(value: Value) -> str:
    return value.hex if value.value is None else f"{value.value:.6g}"


def _interval(value: Value) -> str:
    return "" if value.lower is None or value.upper is None else f"{value.lower:.6g} to {value.upper:.6g}"
