"""Render the tables of the live view: metrics with their course, workers with their bars, and nodes. Pure.

Each row is one line, which is cut to the width of the terminal. Text from files is made printable here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sidecar.commands.observed_nodes import ObservedNode
from sidecar.commands.progress_rate import duration
from sidecar.commands.sparkline import sparkline
from sidecar.commands.status.collect import RunStatus
from sidecar.commands.status.plan_progress import WorkerLine
from sidecar.commands.status.render import active, last_change, standby
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.totals import number_of
from sidecar.protocol.records import shown_step
from sidecar.protocol.states import WorkerPhase
from sidecar.publishing.report import bests
from sidecar.system.plain_text import number, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

STAR: Final = "★"
"""Mark of the best value."""

_EVALUATIONS_SHOWN: Final = 40  # by a sparkline
_FEWEST_SHOWN: Final = 8
_SPAN_CHARACTERS: Final = 25  # two spaces, and `-1.2345e-05 to 0.98765`
_NAME_CHARACTERS: Final = 22
_BAR_CHARACTERS: Final = 20
_NARROW: Final = 64  # columns below which the less important columns are left out
_COUNTED: Final = (WorkerPhase.READ, WorkerPhase.EVALUATE)  # phases that have batches
_HEADINGS: Final = ("metric", "newest", f"best ({STAR})")


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Hold the course of one metric. Numbers are text for people."""

    name: str
    newest: str
    best: str
    values: list[float]


def metric_rows(status: RunStatus) -> list[MetricRow]:
    """Return a row for each metric of the newest task, with its values in the newest evaluations."""
    latest = status.history.newest_task.latest
    best_by = bests(status.history)
    results = [
        entry.outcome.result
        for entry in status.history.entries
        if isinstance(entry, Closed) and entry.outcome.result is not None
    ]
    rows = []
    for eval_set, newest in latest.items():
        for name, value in newest.result.metrics.get(eval_set, {}).items():
            values = [
                number_of(result.metrics[eval_set][name])
                for result in results
                if name in result.metrics.get(eval_set, {})
            ]
            best = best_by.get((eval_set, name))
            where = "" if best is None else shown_step(best.step, best.step_source) or best.checkpoint
            is_best = best is not None and best.number == number_of(value)
            rows.append(
                MetricRow(
                    f"{eval_set}/{name}" if len(latest) > 1 else name,
                    number(value.number) + (f" {STAR}" if is_best else ""),
                    "" if best is None else f"{number(best.number)} at {where}",
                    values[-_EVALUATIONS_SHOWN:],
                )
            )
    return rows


def metric_table(rows: list[MetricRow], count: int, width: int) -> "RenderableType":
    """Return a table of the first `count` metrics: newest, best, and a sparkline with its range."""
    wide = width >= _NARROW
    more = f", {len(rows) - count} more not shown" if count < len(rows) else ""
    table = _grid(["metric", "newest", *([f"best ({STAR})"] if wide else []), f"course{more}"])
    leading = [(cut(row.name), row.newest, *([cut(row.best)] if wide else [])) for row in rows[:count]]
    columns = zip(*leading, strict=True)
    used = sum(max(map(len, (heading, *column))) + 2 for heading, column in zip(_HEADINGS, columns, strict=False))
    for cells, row in zip(leading, rows, strict=False):
        values = row.values[-max(_FEWEST_SHOWN, min(_EVALUATIONS_SHOWN, width - used - _SPAN_CHARACTERS * wide)) :]
        finite = [value for value in values if math.isfinite(value)]
        span = f"  {number(min(finite))} to {number(max(finite))}" if len(finite) > 1 and wide else ""
        table.add_row(*map(line_of, cells), line_of(sparkline(values, width=len(values)) + span))
    return table


def _grid(headings: Sequence[str]) -> "Table":
    """Return a table without borders, whose rows are one line each."""
    from rich.table import Table  # noqa: PLC0415 - only people need it

    table = Table.grid(padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    table.show_header, table.header_style = True, "dim"
    return table


def member_table(status: RunStatus, members: Sequence[ObservedNode], count: int, width: int) -> "Table":
    """Return one line for each of the first `count` nodes, after the headings."""
    wide = width >= _NARROW
    some = f" ({count} of {len(members)})" if count < len(members) else ""
    table = _grid([f"node{some}", "state", "last change", *(["role", "active", "standby", "version"] if wide else [])])
    for observed in members[:count]:
        heartbeat = observed.heartbeat
        cells = [cut(heartbeat.node), heartbeat.state, last_change(status, observed)]
        if wide:
            has_workers = heartbeat.role != "chief" and not observed.left
            counts = [str(active(heartbeat)), str(standby(heartbeat))] if has_workers else ["", ""]
            cells += [heartbeat.role, *counts, cut(heartbeat.about.version)]
        table.add_row(*map(line_of, cells), style="" if observed.fresh(status.lease_seconds) else "dim")
    return table


def worker_rows(workers: Sequence[WorkerLine], count: int, width: int) -> "RenderableType":
    """Return one line with a bar for each worker; if there is not room for all, for the slowest ones."""
    from rich.console import Group  # noqa: PLC0415 - only people need it

    if count >= len(workers):
        return _worker_table(workers, width)
    slowest_first = sorted(workers, key=lambda line: (line.phase is not None, line.fraction, line.rank))
    shown = sorted(slowest_first[: count - 1], key=lambda line: line.rank)
    return Group(_worker_table(shown, width), line_of(f"and {len(workers) - len(shown)} more workers, further on"))


def _worker_table(shown: Sequence[WorkerLine], width: int) -> "Table":
    from rich.progress_bar import ProgressBar  # noqa: PLC0415 - only people need it
    from rich.table import Table  # noqa: PLC0415

    wide = width >= _NARROW
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    for _ in range(2):
        table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True)
    for _ in range(3 if wide else 1):
        table.add_column(justify="right", no_wrap=True)
    for line in shown:
        bar: RenderableType = ""
        if line.phase in _COUNTED and line.total:
            bar = ProgressBar(
                total=line.total, completed=line.batches, width=_BAR_CHARACTERS if wide else _BAR_CHARACTERS // 2
            )
        cells = [str(line.rank), cut(line.node), cut(_doing(line))]
        table.add_row(*map(line_of, cells), bar, *map(line_of, _numbers(line) if wide else [_count(line)]))
    return table


def _doing(line: WorkerLine) -> str:
    if line.silent_seconds is not None:
        return f"silent for {duration(line.silent_seconds)}"
    if line.phase is None:
        return "not reported"
    return "done" if line.phase == WorkerPhase.IDLE else line.phase


def _count(line: WorkerLine) -> str:
    if line.phase not in _COUNTED or not (line.batches or line.total):
        return ""
    return f"{line.batches}/{line.total}" if line.total is not None else f"{line.batches} batches"


def _numbers(line: WorkerLine) -> list[str]:
    """Return the batches, their rate, and the time that is left, as far as each is known."""
    rate = "" if line.per_second is None else f"{number(round(line.per_second, 2))}/s"
    left = "" if line.seconds_left is None else f"{duration(line.seconds_left)} left"
    return [_count(line), rate, left]


def cut(text: str) -> str:
    """Return a name as printable text of at most `_NAME_CHARACTERS` characters."""
    text = one_line(text)
    return text if len(text) <= _NAME_CHARACTERS else text[: _NAME_CHARACTERS - 1] + "…"


def line_of(words: str, style: str = "") -> "Text":
    """Return text of one line that cannot control the terminal."""
    from rich.text import Text  # noqa: PLC0415 - only people need it

    return Text(one_line(words), style=style, no_wrap=True, overflow="ellipsis")
