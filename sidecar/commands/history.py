"""Print the results of a run, or say why there are none."""

import json
from collections.abc import Mapping
from typing import Any, Literal

import typer
from rich.console import Console

from sidecar.commands.hints import no_run, typed
from sidecar.commands.history_plot import plots
from sidecar.commands.history_table import best_plans, courses, left_out_line, table
from sidecar.commands.status.observe import observer_of
from sidecar.commands.terminal import print_history
from sidecar.coordination.journal import read_history
from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.coordination.run import find_run
from sidecar.errors import SettingsError
from sidecar.publishing.export import as_csv
from sidecar.publishing.narrowing import Narrowing
from sidecar.publishing.report import rows
from sidecar.publishing.stretches import breaks
from sidecar.system.plain_text import printable

HistoryForm = Literal["table", "plot", "csv", "json"]


def form_of(asked: Mapping[HistoryForm, bool]) -> HistoryForm:
    """Return the form that was asked for, or a table. Raises `SettingsError` if there are several."""
    given = [form for form, is_asked in asked.items() if is_asked]
    if len(given) > 1:
        named = " and ".join(f"--{form}" for form in given)
        raise SettingsError(f"{named} are {len(given)} formats: give one of them")
    return given[0] if given else "table"


def history_of(flags: dict[str, Any]) -> tuple[str, JournalState, str]:
    """Return the run, its history, and a sentence for a person if that is empty."""
    settings, storage_timeout, observer = observer_of(flags)
    found = storage_timeout.call(lambda: read_history(observer.storage))
    if found.entries:
        return settings.run, found, ""
    if storage_timeout.call(lambda: find_run(observer.storage)) is None:
        return settings.run, found, storage_timeout.call(lambda: no_run(settings))
    why = f"no result yet; `{typed(settings, 'status')}` shows what is going on"
    return settings.run, found, f"run {settings.run}: {why}"


def _there_is(history: JournalState) -> str:
    """Return the metrics, eval sets and steps of a history, for a person who asked for others."""
    results = [
        (each.outcome.result, each.plan.checkpoint)
        for each in history.entries
        if isinstance(each, Closed) and each.outcome.result is not None
    ]
    by_set = {name: values for result, _ in results for name, values in result.metrics.items()}
    metrics = dict.fromkeys(name for values in by_set.values() for name in values)
    steps = [checkpoint.step for _, checkpoint in results if checkpoint is not None and checkpoint.step is not None]
    span = f"; steps: {min(steps)} to {max(steps)}" if steps else ""
    return f"metrics: {', '.join(metrics) or 'none'}; eval sets: {', '.join(by_set) or 'none'}{span}"


def print_history_of(flags: dict[str, Any], narrowing: Narrowing, form: HistoryForm) -> None:
    """Print the results that were asked for, oldest first: a table or plots for people, CSV, or a list of objects."""
    _, whole, none_yet = history_of(flags)
    found = narrowing.of(whole)
    if form == "json":
        typer.echo(json.dumps(rows(found), indent=1, allow_nan=False))
    elif form == "csv":
        typer.echo(as_csv(found), nl=False)
    elif none_yet:
        typer.echo(none_yet)
    elif not found.entries:
        none = f"none of the {len(whole.entries)} results is what the options ask for"
        typer.echo(printable(f"{none}; {_there_is(whole)}"))
    elif form == "plot":
        console = Console()
        colors = console.is_terminal and not console.no_color and console.color_system is not None
        for plot in plots(found, best_plans(whole), width=console.width, colors=colors):
            typer.echo(plot)
    else:
        shown, best, console = rows(found), best_plans(whole), Console()
        broken = breaks(found.entries)
        drawn, left_out = table(shown, best, console.width, broken)
        below = [left_out_line(left_out)] if left_out else []
        print_history(console, drawn, shown, [*below, *courses(shown, best, broken)])
