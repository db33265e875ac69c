"""Render the table of `sidecar history`, and below it a sparkline of each metric.

Pure, except that times are shown in the time zone of this machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sidecar.commands.sparkline import sparkline
from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.records import shown_step
from sidecar.publishing.report import bests, plan_of
from sidecar.publishing.selection_bias import by_neighbours
from sidecar.publishing.stretches import mark
from sidecar.system.clock import local_time, seconds_between
from sidecar.system.plain_text import aligned, broken_at_signs, listed, number, one_line

STAR: Final = "★"
"""Mark of the best value of a run."""

Metric = tuple[str, str]
"""An eval set and the name of a metric."""

Row = Mapping[str, Any]

Breaks = Mapping[int, Mapping[str, str]]
"""Places where numbers stop being comparable, by plan: see `sidecar.publishing.stretches.with_breaks`."""

_NAME: Final = 20  # columns in which a name is not folded: `model.ckpt-12000`, `epoch-03.keras`
_HEADING: Final = 12  # columns in which the name of a metric is not folded
_BEFORE_METRICS: Final = 3  # columns: step, checkpoint, status
_LEAST_WANTED: Final = ("workers", "examples", "lag", "took", "time")
"""The columns that are left out first, where there is no room for all."""

_NAMED: Final = 4  # columns without room that a line below the table names
_SPARKLINES_SHOWN: Final = 8  # metrics
_EVALUATIONS_SHOWN: Final = 40  # in a sparkline
_FEWEST_SHOWN: Final = 3  # a sparkline of two values shows nothing


def best_plans(history: JournalState) -> dict[Metric, int]:
    """Return the number of the plan with the best value of each metric that has a direction."""
    return {metric: plan for metric, best in bests(history).items() if (plan := plan_of(best)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """Hold a column of the table."""

    name: str  # the name by which a line below the table says that the column is left out
    heading: tuple[str, ...]  # lines of the heading
    cells: list[str]  # one text for each row
    # The width in which the column can be read. Wider texts are folded.
    least: int
    is_number: bool = True  # whether the texts stand at the right

    @property
    def most(self) -> int:
        """Return the width in which nothing is folded."""
        return _width((*self.heading, *self.cells))


def table(
    rows: Sequence[Row], best: Mapping[Metric, int], width: int, broken: Breaks | None = None
) -> tuple[RenderableType, list[str]]:
    """Return the rows as a table for people, and the names of the columns for which it has no room.

    There is one column per metric, whose best value is marked. Numbers, and names of checkpoints of a usual length, are
    whole as long as one metric has room next to them: the least useful columns are left out. A line stands between
    rows whose numbers cannot be compared.
    """
    columns, left_out = _fitting(_columns(rows, best), width)
    spare, widths = width - _total(columns), []
    for column in columns:
        more = max(0, min(spare, column.most - column.least))
        spare -= more
        widths.append(column.least + more)
    parts: list[RenderableType] = []
    part = _new_table(columns, widths, with_heading=True)
    for row, cells in zip(rows, zip(*(column.cells for column in columns), strict=True), strict=True):
        at = {} if broken is None or row["status"] != "succeeded" else broken.get(row["plan"], {})
        if at:
            parts += [part, _safe_text(mark(at))]
            part = _new_table(columns, widths, with_heading=False)
        part.add_row(*map(_safe_text, cells))
    return Group(*parts, part) if parts else part, left_out


def _new_table(columns: Sequence[_Column], widths: Sequence[int], *, with_heading: bool) -> Table:
    """Return a table with these columns and no rows."""
    result = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, show_header=with_heading)  # as narrow as possible
    for column, width in zip(columns, widths, strict=True):
        first, *others = [part for line in column.heading for part in broken_at_signs(one_line(line), width)]
        heading = _safe_text(first)
        for line in others:
            heading = heading.append("\n").append_text(_safe_text(line))
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        result.add_column(heading, justify=justify, overflow="fold", width=width)
    return result


def left_out_line(names: Sequence[str]) -> str:
    """Return a sentence about the columns that have no room."""
    return f"no room for: {listed([*map(one_line, names)], _NAMED)}; --metric and --set choose, --csv has all"


def _columns(rows: Sequence[Row], best: Mapping[Metric, int]) -> list[_Column]:
    """Return all columns. Those of the metrics are between `status` and `examples`."""
    steps = [shown_step(row["step"], row["step_source"]) for row in rows]
    names, outcomes = [str(row["checkpoint"]) for row in rows], [_outcome(row) for row in rows]
    words = [word for outcome in outcomes for word in outcome.split()]
    found = [
        _Column(name="step", heading=("step",), cells=steps, least=_width(("step", *steps))),
        _Column(
            name="checkpoint",
            heading=("checkpoint",),
            cells=names,
            least=min(_NAME, _width(("checkpoint", *names))),
            is_number=False,
        ),
        _Column(
            name="status",
            heading=("status",),
            cells=outcomes,
            least=min(_NAME, _width(("status", *words))),
            is_number=False,
        ),
    ]
    for metric in _metrics(rows):
        cells = _metric_cells(rows, metric, best.get(metric))
        least = max(_width(cells), min(_HEADING, _width(metric)))
        found.append(_Column(name="/".join(metric), heading=metric, cells=cells, least=least))
    others = {
        "examples": [str(sum(row["examples"].values())) if row["examples"] else "" for row in rows],
        "workers": [str(row["workers"] or "") for row in rows],
        "took\ns": [_seconds_taken(row) for row in rows],
        "lag\ns": [_seconds(row["lag_seconds"]) for row in rows],
    }
    for name, cells in others.items():
        heading = tuple(name.split("\n"))
        found.append(_Column(name=heading[0], heading=heading, cells=cells, least=_width((*heading, *cells))))
    zone, times = _times([row["completed_at"] for row in rows])
    return [*found, _Column(name="time", heading=(zone,), cells=times, least=_width((zone, *times)), is_number=False)]


def _seconds_taken(row: Row) -> str:
    return "" if row["attempt"] is None else _seconds(seconds_between(row["proposed_at"], row["completed_at"]))


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


def _times(completed: Sequence[str]) -> tuple[str, list[str]]:
    """Return the heading of the local times, and one for each row. If their zones differ, each row names its own."""
    moments = [local_time(text) for text in completed]
    zones = {zone for _, zone in moments if zone}
    if len(zones) == 1:
        return zones.pop(), [time for time, _ in moments]
    return "time", [f"{time} {zone}".strip() for time, zone in moments]


def _fitting(columns: Sequence[_Column], width: int) -> tuple[list[_Column], list[str]]:
    """Return the columns that fit, and the names of the others, metrics first. One metric stays at any width."""
    shown, metrics = list(columns), columns[_BEFORE_METRICS : -len(_LEAST_WANTED)]
    by_name = {column.name: column for column in columns[-len(_LEAST_WANTED) :]}
    left_out: list[str] = []
    for column in (*(by_name[name] for name in _LEAST_WANTED), *reversed(metrics[1:])):
        if _total(shown) <= width:
            break
        shown.remove(column)
        left_out.append(column.name)
    return shown, sorted(left_out, key=_LEAST_WANTED.__contains__)


def _total(columns: Sequence[_Column]) -> int:
    """Return the width of a table, with a blank between columns."""
    return sum(column.least for column in columns) + len(columns) - 1


def _width(texts: Sequence[str]) -> int:
    """Return the columns of a terminal that the widest text takes."""
    return max(cell_len(one_line(text)) for text in texts)


def sparklines(rows: Sequence[Row], best: Mapping[Metric, int], broken: Breaks | None = None) -> list[str]:
    """Return lines below the table: the meaning of the mark, and a sparkline of each metric with three values.

    A sparkline shows the newest values that can be compared.
    """
    shown, places = {row["plan"] for row in rows}, broken or {}
    since = " of the newest data and task" if shown & places.keys() else " of the run"
    lines = [f"{STAR} best{since}"] if shown & set(best.values()) else []
    by_metric = {metric: _numbers(_since(rows, metric[0], places), metric) for metric in _metrics(rows)}
    long_enough = {metric: values for metric, values in by_metric.items() if len(values) >= _FEWEST_SHOWN}
    for (eval_set, name), values in list(long_enough.items())[:_SPARKLINES_SHOWN]:
        newest = values[-_EVALUATIONS_SHOWN:]
        finite = [value for value in newest if abs(value) < float("inf")]
        span = f"  {number(min(finite))} to {number(max(finite))}" if finite else "  no finite number"
        lines.append(f"{sparkline(newest, width=len(newest))}  {one_line(f'{eval_set}/{name}')}{span}")
    return lines


def winners(rows: Sequence[Row], best: Mapping[Metric, int], broken: Breaks | None = None) -> list[str]:
    """Return a sentence for each best value that is too good to be told without the numbers around it."""
    lines = []
    for metric, plan in list(best.items())[:_SPARKLINES_SHOWN]:
        since = [row for row in _since(rows, metric[0], broken or {}) if metric[1] in row["metrics"].get(metric[0], {})]
        place = next((place for place, row in enumerate(since) if row["plan"] == plan), None)
        numbers = _numbers(since, metric)
        around = None if place is None else by_neighbours(numbers, place)
        if place is not None and around is not None and number(around) != number(numbers[place]):
            name, count = one_line("/".join(metric)), len(numbers)
            chosen = f"{STAR} {name}: {number(numbers[place])} is the best of {count:,} numbers"
            lines.append(f"{chosen}, and partly luck; those around it say {number(around)}")
    return lines


def _since(rows: Sequence[Row], eval_set: str, broken: Breaks) -> Sequence[Row]:
    """Return the rows from the last place on where numbers of an eval set stopped being comparable."""
    starts = [place for place, row in enumerate(rows) if eval_set in broken.get(row["plan"], {})]
    return rows[starts[-1] :] if starts else rows


def _metrics(rows: Sequence[Row]) -> list[Metric]:
    names = ((eval_set, name) for row in rows for eval_set, values in row["metrics"].items() for name in values)
    return list(dict.fromkeys(names))


def _metric_cells(rows: Sequence[Row], metric: Metric, best: int | None) -> list[str]:
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


def _outcome(row: Row) -> str:
    if row["status"] == "succeeded":
        return "ok"
    return str(row["status"] if row["kind"] is None else f"{row['status']}: {row['kind']}")


def _printed(value: Mapping[str, Any] | None) -> float | str | None:
    if value is None:
        return None
    shown: float | str = value["hex"] if value["value"] is None else value["value"]
    return shown


def _safe_text(words: str) -> Text:
    """Return text that cannot control the terminal."""
    return Text(one_line(words))
