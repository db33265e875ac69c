"""Print every number of a run for other programs."""

from typing import Any

import typer

from sidecar.commands.history import history_of
from sidecar.publishing.export import ExportFormat, as_csv, as_json_lines, as_openmetrics
from sidecar.publishing.narrowing import Narrowing


def print_export(flags: dict[str, Any], narrowing: Narrowing, form: ExportFormat) -> None:
    """Print the results that were asked for; without any, print an empty document, and the reason as an error."""
    run, whole, none_yet = history_of(flags)
    history = narrowing.of(whole)
    if form == "csv":
        text = as_csv(history)
    elif form == "jsonl":
        text = as_json_lines(history)
    else:
        text = as_openmetrics(history, run)
    typer.echo(text, nl=False)
    if none_yet:
        typer.echo(none_yet, err=True)
