"""Render the live view of `sidecar status --watch` for a terminal of any size. Pure.

The screen has sections, of which each has lines that may be left out. `fit` divides the height of the terminal among
them, so that every section shows its most important lines, and each line is cut to the width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.commands.progress_rate import duration
from sidecar.commands.status.best_export import best_export_line
from sidecar.commands.status.collect import RunStatus
from sidecar.commands.status.live_tables import cut, line_of, member_table, metric_rows, metric_table, worker_rows
from sidecar.commands.status.plan_progress import WorkerLine, plan_seconds_left
from sidecar.commands.status.render import (
    lines,
    member_notes,
    open_seconds,
    past_lines,
    plan_line,
    queue_lines,
    verdicts_line,
)
from sidecar.commands.waiting import usual_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Section:
    """Hold a part of the screen: the number of its lines, how many are always shown, and how to render some of them.

    `render` takes the number of lines that there is room for, and returns a renderable of at most so many lines. With
    `blank`, an empty line stands before the section if there is room for all of them.
    """

    lines: int
    least: int
    render: "Callable[[int], RenderableType]"
    blank: bool = False


def live_view(
    run: str, status: RunStatus, workers: Sequence[WorkerLine], *, width: int, height: int
) -> "list[RenderableType]":
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


def _texts(texts: "list[Text]", *, least: int, blank: bool = False) -> Section:
    """Return a section of lines of text."""
    for text in texts:
        text.no_wrap, text.overflow = True, "ellipsis"
        text.plain = text.plain.replace("\n", " ").replace("\t", " ")

    def render(count: int) -> "RenderableType":
        from rich.console import Group  # noqa: PLC0415 - only people need it

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
