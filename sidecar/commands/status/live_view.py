"""Render the live view of `sidecar status --watch` for a terminal of any size. Pure.

The screen has sections, of which each has lines that may be left out. `fit` divides the height of the terminal among
them, so that every section shows its most important lines, and each line is cut to the width. The tables at the end of
this file have one line for each metric with its course, each worker with its bar, and each node.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sidecar.commands.observed_nodes import ObservedNode
from sidecar.commands.progress_rate import duration
from sidecar.commands.sparkline import sparkline
from sidecar.commands.status.collect import RunStatus
from sidecar.commands.status.plan_progress import WorkerLine, plan_seconds_left
from sidecar.commands.status.render import (
    backup_line,
    best_export_line,
    last_change,
    lines,
    member_notes,
    open_seconds,
    past_lines,
    plan_line,
    queue_lines,
    verdicts_line,
)
from sidecar.commands.waiting import usual_seconds
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.totals import number_of
from sidecar.protocol.records import shown_step
from sidecar.protocol.states import WorkerPhase
from sidecar.publishing.report import bests
from sidecar.system.plain_text import number, one_line


@dataclass(frozen=True, slots=True)
class Section:
    """Hold a part of the screen: the number of its lines, how many are always shown, and how to render some of them.

    `render` takes the number of lines that there is room for, and returns a renderable of at most so many lines. With
    `blank`, an empty line stands before the section if there is room for all of them.
    """

    lines: int
    least: int
    render: Callable[[int], RenderableType]
    blank: bool = False


def live_view(
    run: str, status: RunStatus, workers: Sequence[WorkerLine], *, width: int, height: int
) -> list[RenderableType]:
    """Return the screen, at most `height` lines of `width` columns, the most important first."""
    if status.run_id is None:
        return list(lines(run, status))
    sections = list(_sections(run, status, workers, width))
    heights = fit(height, [(section.least, section.lines) for section in sections])
    blanks = sum(heights) + sum(section.blank for section in sections) <= height
    view: list[RenderableType] = []
    for section, count in zip(sections, heights, strict=True):
        if count:
            view += [""] if section.blank and blanks else []
            view.append(section.render(count))
    return view


def fit(height: int, wanted: Sequence[tuple[int, int]]) -> list[int]:
    """Divide `height` lines among sections, of which each wants between `least` and `most` lines.

    Earlier sections come first if there is not room for the least of all. The rest is given out line by line.
    """
    heights, left = [], height
    for least, most in wanted:
        heights.append(min(least, most, left))
        left -= heights[-1]
    while left > 0:
        hungry = [index for index, (_, most) in enumerate(wanted) if heights[index] < most]
        if not hungry:
            break
        for index in hungry[:left]:
            heights[index] += 1
        left -= len(hungry[:left])
    return heights


def _sections(run: str, status: RunStatus, workers: Sequence[WorkerLine], width: int) -> Iterator[Section]:
    title = f"run {run}" + (f" in {status.directory.path}" if status.directory.path else "")
    yield _texts([line_of(title, "bold")], least=1)
    metrics = metric_rows(status)
    if metrics:
        rows = len(metrics) + 1
        yield Section(rows, min(4, rows), lambda count: metric_table(metrics, count - 1, width), blank=True)
    if status.best_export is not None:
        yield _texts([line_of(best_export_line(status.best_export))], least=0)
    if status.directory.backup is not None:
        yield _texts([line_of(backup_line(status))], least=0)
    yield _texts([line_of(_plan_text(status, workers), "bold" if status.history.open else "")], least=1, blank=True)
    if status.directory.busy:
        yield _texts([line_of(status.directory.busy, "yellow")], least=0)
    if workers:
        yield Section(len(workers), min(3, len(workers)), lambda count: worker_rows(workers, count, width))
    yield _texts(list(queue_lines(status)), least=1, blank=True)
    yield _texts([line_of(verdicts_line(status))], least=1)
    members = sorted(status.members, key=lambda observed: observed.fresh(status.lease_seconds) is True)
    if members:  # those that are not alive come first, as they need attention
        rows = len(members) + 1
        yield Section(rows, min(3, rows), lambda count: member_table(status, members, count - 1, width), blank=True)
    notes = list(member_notes(status))
    yield _texts(notes, least=min(1, len(notes)))
    past = list(past_lines(status))
    if past:
        yield _texts([line_of("ended last, newest first"), *past], least=3, blank=True)


def _texts(texts: list[Text], *, least: int, blank: bool = False) -> Section:
    """Return a section of lines of text."""
    for text in texts:
        text.no_wrap, text.overflow = True, "ellipsis"
        text.plain = text.plain.replace("\n", " ").replace("\t", " ")

    def render(count: int) -> RenderableType:
        return Group(*texts[:count])

    return Section(len(texts), least, render, blank)


def _plan_text(status: RunStatus, workers: Sequence[WorkerLine]) -> str:
    """Return a sentence about the open plan, with the time that is left if it is known."""
    plan = status.history.open
    if plan is None or plan.checkpoint is None:
        return plan_line(status)
    step = f" (step {plan.checkpoint.shown_step})" if plan.checkpoint.shown_step else ""
    left, usual = plan_seconds_left(workers), usual_seconds(status.history)
    parts = [
        f"plan {plan.plan}: {cut(plan.checkpoint.name)}{step}",
        *([f"attempt {plan.attempt}"] if plan.attempt != 1 else []),
        f"open for {duration(open_seconds(status))}",
        *([f"about {duration(left)} left"] if left is not None else [f"usually {duration(usual)}"] if usual else []),
    ]
    return ", ".join(parts)


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


def metric_table(rows: list[MetricRow], count: int, width: int) -> RenderableType:
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


def _grid(headings: Sequence[str]) -> Table:
    """Return a table without borders, whose rows are one line each."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    table.show_header, table.header_style = True, "dim"
    return table


def member_table(status: RunStatus, members: Sequence[ObservedNode], count: int, width: int) -> Table:
    """Return one line for each of the first `count` nodes, after the headings."""
    wide = width >= _NARROW
    some = f" ({count} of {len(members)})" if count < len(members) else ""
    table = _grid([f"node{some}", "state", "last change", *(["role", "active", "standby", "version"] if wide else [])])
    for observed in members[:count]:
        heartbeat = observed.heartbeat
        cells = [cut(heartbeat.node), heartbeat.state, last_change(status, observed)]
        if wide:
            has_workers = heartbeat.role != "chief" and not observed.left
            counts = [str(heartbeat.active), str(heartbeat.standby)] if has_workers else ["", ""]
            cells += [heartbeat.role, *counts, cut(heartbeat.about.version)]
        table.add_row(*map(line_of, cells), style="" if observed.fresh(status.lease_seconds) else "dim")
    return table


def worker_rows(workers: Sequence[WorkerLine], count: int, width: int) -> RenderableType:
    """Return one line with a bar for each worker; if there is not room for all, for the slowest ones."""
    if count >= len(workers):
        return _worker_table(workers, width)
    slowest_first = sorted(workers, key=lambda line: (line.phase is not None, line.fraction, line.rank))
    shown = sorted(slowest_first[: count - 1], key=lambda line: line.rank)
    return Group(_worker_table(shown, width), line_of(f"and {len(workers) - len(shown)} more workers, further on"))


def _worker_table(shown: Sequence[WorkerLine], width: int) -> Table:
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


def line_of(words: str, style: str = "") -> Text:
    """Return text of one line that cannot control the terminal."""
    return Text(one_line(words), style=style, no_wrap=True, overflow="ellipsis")
