"""Plot the metrics of a run over the training step as text, for `sidecar history --plot`. Pure.

plotille draws with braille dots: it is pure Python without dependencies, so it costs other commands nothing. It is
imported here alone.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, Final

from sidecar.commands.history_table import STAR, Metric
from sidecar.coordination.journal_state import Entry
from sidecar.coordination.totals import number_of
from sidecar.protocol.records import Checkpoint, Key, Value, shown_step
from sidecar.publishing.stretches import with_breaks
from sidecar.system.plain_text import listed, number, one_line, shortened

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold one value of a metric. `x` is its step, or its number in order if steps are unknown."""

    x: int
    value: Value
    where: str  # the step or the checkpoint, as people read it
    plan: int
    stretch: int = 0  # numbers of two stretches cannot be compared

    @property
    def number(self) -> float:
        """Return the value as a float."""
        return number_of(self.value)


@dataclass(slots=True)
class Series:
    """Hold the points of one metric by rising `x`, and what `x` is."""

    metric: Metric
    axis: str
    points: list[Point] = field(default_factory=list)

    @property
    def drawable(self) -> list[Point]:
        """Return the points that have a place on the plot."""
        return [point for point in self.points if abs(point.number) <= _LARGEST]


def plots(all_series: Sequence[Series], best: Mapping[Metric, int], *, width: int, colors: bool) -> Iterator[str]:
    """Yield a plot of each metric as lines of text that are at most `width` columns wide, and what it leaves out.

    Args:
        all_series: The metrics of the run, as `series_of` returns them.
        best: The number of the plan with the best value of each metric.
        width: Columns of the terminal.
        colors: Whether to use the terminal's colors.
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


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Hold what is plotted of an evaluation: its values, each with the number of its stretch."""

    checkpoint: Checkpoint
    plan: int
    values: tuple[tuple[Metric, Value, int], ...]


def series_of(entries: Iterable[Entry]) -> list[Series]:
    """Return the series of each metric. Evaluations count in their order if the step of one is unknown.

    If a checkpoint was evaluated again, its newest numbers count. Only the first `PLOTS_SHOWN` have points, so that a
    long history takes little memory.
    """
    evaluations: dict[Key, _Evaluation] = {}
    metrics, stretches = dict[Metric, None](), dict[str, int]()
    for closed, broken in with_breaks(entries):
        checkpoint, result = closed.plan.checkpoint, closed.outcome.result
        assert checkpoint is not None
        assert result is not None
        for eval_set in result.examples:
            stretches[eval_set] = stretches.get(eval_set, 0) + (eval_set in broken)
        metrics |= dict.fromkeys((eval_set, name) for eval_set, values in result.metrics.items() for name in values)
        plotted = tuple(
            ((eval_set, name), result.metrics[eval_set][name], stretches.get(eval_set, 0))
            for eval_set, name in islice(metrics, PLOTS_SHOWN)
            if name in result.metrics.get(eval_set, {})
        )
        evaluations.pop(checkpoint.key, None)
        evaluations[checkpoint.key] = _Evaluation(checkpoint, closed.plan.plan, plotted)
    steps = [each.checkpoint.step for each in evaluations.values() if each.checkpoint.step_source != "order"]
    has_steps = len(steps) == len(evaluations) and None not in steps
    found = {metric: Series(metric, "step" if has_steps else "order") for metric in metrics}
    for order, each in enumerate(evaluations.values(), start=1):
        step = each.checkpoint.step
        x = step if has_steps and step is not None else order
        where = f"step {shown_step(step, each.checkpoint.step_source)}" if has_steps else each.checkpoint.name
        for metric, value, stretch in each.values:
            found[metric].points.append(Point(x=x, value=value, where=where, plan=each.plan, stretch=stretch))
    for series in found.values():
        series.points.sort(key=lambda point: point.x)
    return list(found.values())


def _plot(series: Series, best: int | None, columns: int, *, colors: bool) -> Iterator[str]:
    """Yield the title, the canvas with its axes, and sentences about values without a place on it."""
    eval_set, name = series.metric
    marked = [point for point in series.drawable if point.plan == best]
    at = f"  {STAR} best {number(marked[0].number)} at {one_line(marked[0].where)}" if marked else ""
    yield f"{one_line(f'{eval_set}/{name}')} over {series.axis}{at}"
    if series.drawable:
        yield from _canvas(series, marked, columns, colors=colors).splitlines()
    changes = [after for before, after in pairwise(series.points) if after.stretch != before.stretch]
    if changes:
        few = listed([one_line(point.where) for point in changes], _GAPS_NAMED)
        yield f"data or task changed at {few}: numbers on both sides cannot be compared"
    left_out = [point for point in series.points if abs(point.number) > _LARGEST or math.isnan(point.number)]
    if left_out:
        few = listed([f"{number(point.value.number)} at {one_line(point.where)}" for point in left_out], _GAPS_NAMED)
        yield f"gaps: {few}: not finite, or too large to draw"
    yield ""


def _canvas(series: Series, marked: Sequence[Point], columns: int, *, colors: bool) -> str:
    """Return the plot: a line through the values, dots at the ends of intervals, a star at the best value."""
    import plotille  # noqa: PLC0415 - no other command needs it

    figure: Any = plotille.Figure()
    figure.width, figure.height, figure.origin, figure.with_colors = columns, _HEIGHT, False, colors
    figure.x_label, figure.y_label = series.axis, "value"
    figure.y_ticks_fkt = lambda low, _: f"{number(low):>10}"
    figure.x_ticks_fkt = lambda low, _: f"{_tick(low):<9}"
    most = columns * _POINTS_PER_COLUMN
    ends = [
        (point.x, end)
        for point in _thinned(series.drawable, most)
        for end in (point.value.lower, point.value.upper)
        if end is not None and abs(end) <= _LARGEST
    ]
    numbers = [point.number for point in series.drawable] + [end for _, end in ends]
    if ends:
        figure.scatter(*zip(*ends, strict=True), lc="cyan")
    for run in _without_gaps(series.points):
        thinned = _thinned(run, most)
        figure.plot([point.x for point in thinned], [point.number for point in thinned], lc="green")
    for point in marked:
        figure.scatter([point.x], [point.number], marker=STAR, lc="yellow")
    (left, right), (low, high) = (
        _limits([point.x for point in series.drawable], columns / 10),
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


def _thinned(points: list[Point], most: int) -> list[Point]:
    """Return about `most` of the points, with the smallest and the largest value of each stretch."""
    if len(points) <= most:
        return points
    size = math.ceil(2 * len(points) / most)
    thinned = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {id(find(stretch, key=lambda point: point.number)) for find in (min, max)}
        thinned += [point for point in stretch if id(point) in ends]
    return thinned


def _without_gaps(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield the runs of points between values that cannot be drawn, or not be compared."""
    stretch: list[Point] = []
    for point in points:
        if stretch and stretch[-1].stretch != point.stretch:
            yield stretch
            stretch = []
        if abs(point.number) <= _LARGEST:
            stretch.append(point)
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _tick(x: float) -> str:
    """Return a step in at most nine characters."""
    text = f"{x:.9g}"
    return text if len(text) <= 9 else f"{x:.3g}"  # noqa: PLR2004
