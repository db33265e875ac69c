"""Print the results of a run for people (`history`) or for other programs (`export`), or say why there are none."""

import json
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal

import typer
from rich.console import Console

from sidecar.commands.hints import no_run, typed
from sidecar.commands.history_plot import plots
from sidecar.commands.history_table import best_plans, left_out_line, sparklines, table
from sidecar.commands.run_history import RunHistory
from sidecar.commands.status.observe import observer_of
from sidecar.commands.terminal import print_history, reading_progress
from sidecar.coordination.journal_state import Closed, Entry
from sidecar.coordination.run import find_run
from sidecar.errors import SettingsError
from sidecar.publishing.export import ExportFormat, as_csv, as_json_lines, as_openmetrics
from sidecar.publishing.history_filter import HistoryFilter
from sidecar.publishing.report import entry_rows
from sidecar.publishing.stretches import breaks
from sidecar.settings import Settings
from sidecar.system.plain_text import printable

HistoryForm = Literal["table", "plot", "csv", "json"]


def form_of(asked: Mapping[HistoryForm, bool]) -> HistoryForm:
    """Return the form that was asked for, or a table. Raises `SettingsError` if there are several."""
    given = [form for form, is_asked in asked.items() if is_asked]
    if len(given) > 1:
        named = " and ".join(f"--{form}" for form in given)
        raise SettingsError(f"{named} are {len(given)} formats: give one of them")
    return given[0] if given else "table"


def history_of(flags: dict[str, Any], console: Console) -> tuple[Settings, RunHistory]:
    """Return the settings, and the reader of the run's history, which shows its progress on a console."""
    settings, timeout, observer = observer_of(flags)
    progress = partial(reading_progress, console, timeout.clock)
    return settings, RunHistory(observer.storage, timeout, progress)


def why_empty(settings: Settings, history: RunHistory) -> str:
    """Return why the history that was read has no result, as a sentence; an empty text if it has some."""
    if history.state.log.count:
        return ""
    if history.timeout.call(lambda: find_run(history.storage)) is None:
        return history.timeout.call(lambda: no_run(settings))
    return f"run {settings.run}: no result yet; `{typed(settings, 'status')}` shows what is going on"


def _contents_of(entries: Iterable[Entry]) -> str:
    """Return the metrics, eval sets and steps of a history, for a message to a person who asked for others."""
    metrics, eval_sets, steps = dict[str, None](), dict[str, None](), set[int]()
    for each in entries:
        if isinstance(each, Closed) and each.outcome.result is not None:
            for eval_set, values in each.outcome.result.metrics.items():
                eval_sets[eval_set] = None
                metrics |= dict.fromkeys(values)
            if each.plan.checkpoint is not None and each.plan.checkpoint.step is not None:
                steps.add(each.plan.checkpoint.step)
    span = f"; steps: {min(steps)} to {max(steps)}" if steps else ""
    return f"metrics: {', '.join(metrics) or 'none'}; eval sets: {', '.join(eval_sets) or 'none'}{span}"


def print_history_of(flags: dict[str, Any], wanted: HistoryFilter, form: HistoryForm) -> None:
    """Print the results that were asked for, oldest first: a table or plots for people, CSV, or a list of objects."""
    if form == "csv":
        print_export(flags, wanted, form)
        return
    settings, history = history_of(flags, Console(stderr=True))
    found = list(history.chosen(wanted))
    if form == "json":
        typer.echo(json.dumps(entry_rows(found), indent=1, allow_nan=False))
    elif why := why_empty(settings, history):
        typer.echo(why)
    elif not found:
        none = f"none of the {history.state.log.count} results is what the options ask for"
        typer.echo(printable(f"{none}; {_contents_of(history.oldest_first())}"))
    elif form == "plot":
        console = Console()
        colors = console.is_terminal and not console.no_color and console.color_system is not None
        for plot in plots(found, best_plans(history.state), width=console.width, colors=colors):
            typer.echo(plot)
    else:
        shown, best, console = entry_rows(found), best_plans(history.state), Console()
        broken = breaks(found)
        drawn, left_out = table(shown, best, console.width, broken)
        below = [left_out_line(left_out)] if left_out else []
        print_history(console, drawn, shown, [*below, *sparklines(shown, best, broken)])


def print_export(flags: dict[str, Any], wanted: HistoryFilter, form: ExportFormat) -> None:
    """Print the chosen numbers while they are read.

    If there are no results, print an empty document, and the reason on standard error.
    """
    here = Console(stderr=True, force_terminal=False) if sys.stdout.isatty() else Console(stderr=True)
    settings, history = history_of(flags, here)  # on a terminal, the document itself is the progress
    entries = history.chosen(wanted)
    if form == "csv":
        parts = as_csv(entries)
    elif form == "jsonl":
        parts = as_json_lines(entries)
    else:
        parts = as_openmetrics(entries, settings.run)
    for part in parts:
        typer.echo(part, nl=False)
    if why := why_empty(settings, history):
        typer.echo(why, err=True)
