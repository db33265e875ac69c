"""Render the table of `sidecar history`, and below it the course of each metric. Pure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sidecar.commands.sparkline import sparkline
from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.observability.report import bests
from sidecar.plain_text import aligned, number, one_line
from sidecar.records import shown_step

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

STAR: Final = "★"
"""Mark of the best value of a run."""

Metric = tuple[str, str]
"""An eval set and the name of a metric."""

Row = Mapping[str, Any]

_COURSES_SHOWN: Final = 8
_EVALUATIONS_SHOWN: Final = 40
_FEWEST_SHOWN: Final = 3  # two values have no course


def best_plans(history: JournalState) -> dict[Metric, int]:
    """Return the number of the plan with the best value of each metric that has a direction."""
    plans = {entry.plan.folder: entry.plan.plan for entry in history.entries if isinstance(entry, Closed)}
    return {metric: plans[best.folder] for metric, best in bests(history).items() if best.folder in plans}


def table(rows: Sequence[Row], best: Mapping[Metric, int]) -> "Table":
    """Return the rows as a table for people, with one column per metric, whose best value is marked."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - only people need it
    from rich.table import Table  # noqa: PLC0415

    columns = {metric: _column(rows, metric, best.get(metric)) for metric in _metrics(rows)}
    result = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)  # as narrow as possible
    result.add_column("step", justify="right", no_wrap=True)
    result.add_column("checkpoint", overflow="fold", min_width=10)
    result.add_column("status", overflow="fold", min_width=6)
    for eval_set, name in columns:
        heading = _text(eval_set).append("\n").append_text(_text(name))
        result.add_column(heading, justify="right", no_wrap=True)
    for name in ("examples", "workers", "s"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("UTC", no_wrap=True)
    for index, row in enumerate(rows):
        cells = [
            shown_step(row["step"], row["step_source"]),
            row["checkpoint"],
            _verdict(row),
            *(column[index] for column in columns.values()),
            str(sum(row["examples"].values())) if row["examples"] else "",
            str(row["workers"] or ""),
            f"{sum(row['phases'].values()):.2f}" if row["phases"] else "",
            row["completed_at"][5:16].replace("T", " "),
        ]
        result.add_row(*map(_text, cells))
    return result


def courses(rows: Sequence[Row], best: Mapping[Metric, int]) -> list[str]:
    """Return lines below the table: the meaning of the mark, and a sparkline of each metric with three values."""
    shown = {row["plan"] for row in rows}
    lines = [f"{STAR} best of the run"] if shown & set(best.values()) else []
    by_metric = {metric: _numbers(rows, metric) for metric in _metrics(rows)}
    with_course = {metric: values for metric, values in by_metric.items() if len(values) >= _FEWEST_SHOWN}
    for (eval_set, name), values in list(with_course.items())[:_COURSES_SHOWN]:
        newest = values[-_EVALUATIONS_SHOWN:]
        finite = [value for value in newest if abs(value) < float("inf")]
        span = f"  {number(min(finite))} to {number(max(finite))}" if finite else "  no finite number"
        lines.append(f"{sparkline(newest, width=len(newest))}  {one_line(f'{eval_set}/{name}')}{span}")
    return lines


def _metrics(rows: Sequence[Row]) -> list[Metric]:
    names = ((eval_set, name) for row in rows for eval_set, values in row["metrics"].items() for name in values)
    return list(dict.fromkeys(names))


def _column(rows: Sequence[Row], metric: Metric, best: int | None) -> list[str]:
    """Return the cells of a metric. Those of a column with a mark have room for it."""
    eval_set, name = metric
    values = [_printed(row["metrics"].get(eval_set, {}).get(name)) for row in rows]
    marked = any(row["plan"] == best for row in rows)
    return [
        text + (f" {STAR}" if row["plan"] == best and text else "  ") * marked
        for text, row in zip(aligned(values), rows, strict=True)
    ]


def _numbers(rows: Sequence[Row], metric: Metric) -> list[float]:
    eval_set, name = metric
    values = (row["metrics"].get(eval_set, {}).get(name) for row in rows)
    return [float("nan") if value["value"] is None else value["value"] for value in values if value is not None]


def _verdict(row: Row) -> str:
    if row["status"] == "succeeded":
        return "ok"
    return str(row["status"] if row["kind"] is None else f"{row['status']}: {row['kind']}")


def _printed(value: Mapping[str, Any] | None) -> float | str | None:
    if value is None:
        return None
    shown: float | str = value["hex"] if value["value"] is None else value["value"]
    return shown


def _text(words: str) -> "Text":
    """Return text that cannot control the terminal."""
    from rich.text import Text  # noqa: PLC0415 - only people need it

    return Text(one_line(words))
