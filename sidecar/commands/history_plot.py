"""Plot the metrics of a run over the training step as text, for `sidecar history --plot`. Pure.

plotille draws with braille dots: it is pure Python without dependencies, so it costs other commands nothing. It is
imported here alone.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, pairwise
from typing import Any, Final, Literal, NamedTuple

from sidecar.commands.history_table import STAR, Metric
from sidecar.coordination.journal_state import Entry
from sidecar.coordination.key_set import PackedKey, pack, unpack
from sidecar.coordination.totals import number_of
from sidecar.protocol.records import Checkpoint, Value
from sidecar.publishing.stretches import with_breaks
from sidecar.system.plain_text import number, one_line, shortened

PLOTS_SHOWN: Final = 6
"""The most plots of one command: more would scroll away."""

_HEIGHT: Final = 12  # lines of the canvas; with title and axes one plot fits a terminal of 24
_LEFT: Final = 13  # columns of plotille's vertical axis
_RIGHT: Final = 12  # columns that the horizontal axis needs beyond the canvas, for its arrow and name
_NARROWEST: Final = 20
_POINTS_PER_COLUMN: Final = 8  # more cannot be seen, and would take seconds to draw
_LARGEST: Final = 1e300  # plotille adds margins to the limits, which must not overflow
_GAPS_NAMED: Final = 3
_EMPTY: Final = "\u2800"
_ROUND: Final = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0)


class Point(NamedTuple):
    """Hold one value of a metric. `x` is its step, or its number in order if steps are unknown."""

    x: int
    number: float
    ends: tuple[float, float] | None  # of its interval
    plan: int
    stretch: int  # numbers of two stretches cannot be compared


@dataclass(slots=True)
class _Evaluations:
    """Hold what the axis needs of all evaluations, in the order of the journal, in little memory."""

    rows: dict[PackedKey, int] = field(default_factory=dict)  # the newest row of each checkpoint
    plans: "array[int]" = field(default_factory=lambda: array("Q"))
    steps: list[int | None] = field(default_factory=list)  # None: unknown

    def add(self, checkpoint: Checkpoint, plan: int) -> int:
        """Append an evaluation, and return its row."""
        row, key = len(self.plans), pack(checkpoint.key)
        self.rows.pop(key, None)
        self.rows[key] = row
        self.plans.append(plan)
        self.steps.append(None if checkpoint.step_source == "order" else checkpoint.step)
        return row


@dataclass(slots=True)
class _Numbers:
    """Hold the numbers of one metric, in the order of the journal, in little memory."""

    rows: "array[int]" = field(default_factory=lambda: array("I"))  # of the evaluations that have one
    stretches: "array[int]" = field(default_factory=lambda: array("I"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    lower: "array[float]" = field(default_factory=lambda: array("d"))  # nan: no interval
    upper: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, row: int, value: Value, stretch: int) -> None:
        """Append the number of an evaluation."""
        self.rows.append(row)
        self.stretches.append(stretch)
        self.values.append(number_of(value))
        self.lower.append(math.nan if value.lower is None else value.lower)
        self.upper.append(math.nan if value.upper is None else value.upper)


@dataclass(frozen=True, slots=True)
class Points:
    """Yield points by rising `x`. Each is made when it is read: all of them take far more memory than numbers."""

    numbers: _Numbers
    plans: "array[int]"  # by row
    xs: Sequence[int | None]  # by row
    places: "array[int]"  # of the points among the numbers

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.places)

    def __iter__(self) -> Iterator[Point]:
        """Yield the points."""
        numbers = self.numbers
        for place in self.places:
            row, lower, upper = numbers.rows[place], numbers.lower[place], numbers.upper[place]
            ends = None if math.isnan(lower) and math.isnan(upper) else (lower, upper)
            x = self.xs[row]
            assert x is not None
            yield Point(x, numbers.values[place], ends, self.plans[row], numbers.stretches[place])

    def part(self, start: int, end: int) -> "Points":
        """Return the points from one to before another."""
        return replace(self, places=self.places[start:end])

    def drawable(self) -> "Points":
        """Return the points whose number has a place on the canvas."""
        values = self.numbers.values
        return replace(self, places=array("I", [place for place in self.places if abs(values[place]) <= _LARGEST]))


@dataclass(frozen=True, slots=True)
class Series:
    """Hold the numbers of one metric, and what `x` of its points is: the step, or the order."""

    metric: Metric
    axis: Literal["step", "order"]
    evaluations: _Evaluations
    numbers: _Numbers

    def points(self) -> Points:
        """Return the newest number of each checkpoint by rising `x`."""
        orders = array("I", bytes(4 * len(self.evaluations.plans)))  # 0: evaluated again later
        for order, row in enumerate(self.evaluations.rows.values(), start=1):
            orders[row] = order
        xs = self.evaluations.steps if self.axis == "step" else orders
        rows = self.numbers.rows
        places = [place for place, row in enumerate(rows) if orders[row]]
        places.sort(key=lambda place: xs[rows[place]] or 0)
        return Points(self.numbers, self.evaluations.plans, xs, array("I", places))

    def where(self, point: Point) -> str:
        """Return the step or the checkpoint of a point, as people read it."""
        if self.axis == "step":
            return f"step {point.x}"
        return one_line(unpack(next(islice(self.evaluations.rows, point.x - 1, None)))[0])


def plots(all_series: Sequence[Series], best: Mapping[Metric, int], *, width: int, colors: bool) -> Iterator[str]:
    """Yield a plot of each metric as lines of text of at most `width` columns, and what it leaves out.

    `best`: the number of the plan with the best value of each metric.
    """
    for series in all_series[:PLOTS_SHOWN]:
        yield "\n".join(_plot(series, best.get(series.metric), max(_NARROWEST, width - _LEFT - _RIGHT), colors=colors))
    if len(all_series) > PLOTS_SHOWN:
        example = one_line(all_series[PLOTS_SHOWN].metric[1])
        yield (
            f"{PLOTS_SHOWN} of {len(all_series)} metrics are plotted: choose others with --metric and --set, "
            f"such as --metric {shortened(example)}"
        )
    if not all_series:
        yield "no evaluation has numbers to plot"


def series_of(entries: Iterable[Entry]) -> list[Series]:
    """Return the series of each metric. Evaluations count in their order if the step of one is unknown.

    If a checkpoint was evaluated again, its newest numbers count. Only the first `PLOTS_SHOWN` have numbers, so that a
    long history takes little memory.
    """
    evaluations, stretches = _Evaluations(), dict[str, int]()
    metrics = dict[Metric, _Numbers]()
    for closed, broken in with_breaks(entries):
        result = closed.result
        for eval_set in result.examples:
            stretches[eval_set] = stretches.get(eval_set, 0) + (eval_set in broken)
        row = evaluations.add(closed.checkpoint, closed.plan.plan)
        for eval_set, values in result.metrics.items():
            for name in values:
                if (eval_set, name) not in metrics:
                    metrics[eval_set, name] = _Numbers()
        for (eval_set, name), numbers in islice(metrics.items(), PLOTS_SHOWN):
            if (value := result.metrics.get(eval_set, {}).get(name)) is not None:
                numbers.add(row, value, stretches.get(eval_set, 0))
    has_steps = all(evaluations.steps[row] is not None for row in evaluations.rows.values())
    axis: Literal["step", "order"] = "step" if has_steps else "order"
    return [Series(metric, axis, evaluations, numbers) for metric, numbers in metrics.items()]


def _plot(series: Series, best: int | None, columns: int, *, colors: bool) -> Iterator[str]:
    """Yield the title, the canvas with its axes, and sentences about values without a place on it."""
    (eval_set, name), points = series.metric, series.points()
    drawable = points.drawable()
    marked = [point for point in drawable if point.plan == best]
    at = f"  {STAR} best {number(marked[0].number)} at {series.where(marked[0])}" if marked else ""
    yield f"{one_line(f'{eval_set}/{name}')} over {series.axis}{at}"
    if drawable:
        yield from _canvas(series.axis, points, drawable, marked, columns, colors=colors).splitlines()
    changes = [after for before, after in pairwise(points) if after.stretch != before.stretch]
    if changes:
        few = _few(changes, series.where)
        yield f"data or task changed at {few}: numbers on both sides cannot be compared"
    left_out = [point for point in points if abs(point.number) > _LARGEST or math.isnan(point.number)]
    if left_out:
        few = _few(left_out, lambda point: f"{number(point.number)} at {series.where(point)}")
        yield f"gaps: {few}: not finite, or too large to draw"
    yield ""


def _few(points: Sequence[Point], words: Callable[[Point], str]) -> str:
    """Return the words about the first points, and the number of the others."""
    more = f" and {len(points) - _GAPS_NAMED} more" if len(points) > _GAPS_NAMED else ""
    return ", ".join(map(words, points[:_GAPS_NAMED])) + more


def _canvas(axis: str, points: Points, drawable: Points, marked: Sequence[Point], columns: int, *, colors: bool) -> str:
    """Return the plot: a line through the values, dots at the ends of intervals, a star at the best value."""
    import plotille  # noqa: PLC0415 - no other command needs it

    figure: Any = plotille.Figure()
    figure.width, figure.height, figure.origin, figure.with_colors = columns, _HEIGHT, False, colors
    figure.x_label, figure.y_label = axis, "value"
    figure.y_ticks_fkt = lambda low, _: f"{number(low):>10}"
    figure.x_ticks_fkt = lambda low, _: f"{_tick(low):<9}"
    most = columns * _POINTS_PER_COLUMN
    ends = [(point.x, end) for point in _thinned(drawable, most) for end in point.ends or () if abs(end) <= _LARGEST]
    numbers = [point.number for point in drawable] + [end for _, end in ends]
    if ends:
        figure.scatter(*zip(*ends, strict=True), lc="cyan")
    for run in _without_gaps(points):
        thinned = _thinned(run, most)
        figure.plot([point.x for point in thinned], [point.number for point in thinned], lc="green")
    for point in marked:
        figure.scatter([point.x], [point.number], marker=STAR, lc="yellow")
    (left, right), (low, high) = (
        _limits([point.x for point in drawable], columns / 10),
        _limits(numbers, _HEIGHT),
    )
    figure.set_x_limits(left, right)
    figure.set_y_limits(low, high)
    # An empty cell of braille is drawn as circles by some fonts.
    return "\n".join(line.replace(_EMPTY, " ").rstrip() for line in str(figure.show()).splitlines())


def _limits(values: Sequence[float], ticks: float) -> tuple[float, float]:
    """Return limits around the values, so that each of the `ticks` intervals between them has a round length."""
    least, most = min(values), max(values)
    size = (most - least) / ticks or abs(least) / ticks or 1.0 / ticks
    power = 10.0 ** math.floor(math.log10(size))
    for step in (factor * power for factor in _ROUND):
        low = math.floor(least / step) * step
        if step >= size and low + ticks * step > most:
            return low, low + ticks * step
    return least - size, most + size


def _thinned(points: Points, most: int) -> list[Point]:
    """Return about `most` of the points, with the smallest and the largest value of each stretch."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    thinned = list[Point]()
    for start in range(0, len(points), size):
        stretch = list(points.part(start, start + size))
        ends = {id(find(stretch, key=lambda point: point.number)) for find in (min, max)}
        thinned += [point for point in stretch if id(point) in ends]
    return thinned


def _without_gaps(points: Points) -> Iterator[Points]:
    """Yield the runs of points between values that cannot be drawn, or not be compared."""
    start = 0
    for stretch, run in groupby(points, lambda point: point.stretch if abs(point.number) <= _LARGEST else None):
        end = start + sum(1 for _ in run)
        if stretch is not None:
            yield points.part(start, end)
        start = end


def _tick(x: float) -> str:
    """Return a step in at most nine characters."""
    text = f"{x:.9g}"
    return text if len(text) <= 9 else f"{x:.3g}"  # noqa: PLR2004
