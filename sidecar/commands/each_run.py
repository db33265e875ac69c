"""Let `status`, `history` and `check` answer for each of several runs, where the settings name several.

A run that cannot be read gets a line with the reason, and the others are shown.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sidecar.commands.load import settings_file, warn
from sidecar.commands.status.observe import observer_of
from sidecar.commands.status.render import as_json
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.errors import SettingsError, SidecarError
from sidecar.settings import Settings, load_shared
from sidecar.settings.runs import Place
from sidecar.system.plain_text import number, one_line, printable


@dataclass(frozen=True, slots=True)
class EachRun:
    """Hold the options of a command, and the places of the runs that it is about."""

    flags: dict[str, Any]
    places: list[Place]


def each_run(flags: dict[str, Any], *, form: str | None = None) -> EachRun | None:
    """Return all runs, if the settings name several and the options choose none; else None.

    `form`: a form of output that was asked for, and is about one run. Raises `SettingsError` if there is no run.
    """
    shared = load_shared(flags)
    if shared is None:
        return None
    if form is not None:
        raise SettingsError(f"{form} is about one run, and runs names several: choose one with --run NAME")
    seconds = Settings.model_fields["storage_timeout_seconds"].default
    found = StorageTimeout(seconds, ", ".join(shared.node.runs)).call(shared.places)
    if not found:
        raise SettingsError(f"runs = {list(shared.node.runs)!r} names no directory that exists")
    here = settings_file(flags)
    if here.path is None:
        return EachRun(flags, found)
    warn(f"settings are read from {here.path}")
    return EachRun(flags | {"config": here.path}, found)  # so that it is told once


def for_each(runs: EachRun, show: Callable[[dict[str, Any]], bool]) -> bool:
    """Call `show` with the options of each run below a line with its name, and return whether it always returned True.

    An error of a run is printed, and counts as False.
    """
    results = list[bool]()
    for place in runs.places:
        typer.echo(f"{'run' if not results else chr(10) + 'run'} {one_line(f'{place.name}: {place.where}')}")
        try:
            results.append(show(runs.flags | {"checkpoint_dir": place.where}))
        except SidecarError as error:
            warn(str(error))
            results.append(False)
    return all(results)


def print_statuses(runs: EachRun, *, as_objects: bool) -> None:
    """Print a line, or an object, about each run, from shared storage alone and without waiting for heartbeats."""
    found = [(place, _status(runs.flags, place)) for place in runs.places]
    if as_objects:
        listed = [{"checkpoint_dir": place.where, **status} for place, status in found]
        typer.echo(json.dumps({"runs": listed}, indent=1, allow_nan=False))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("run", "newest", "numbers", "waiting", "evaluated", "directory"):
        table.add_column(heading, justify="right" if heading in ("waiting", "evaluated") else "left")
    for place, status in found:
        table.add_row(*(Text(printable(cell)) for cell in _cells(place, status)))
    Console().print(table)


def _status(flags: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return what `sidecar status --json` says of a run, or why it cannot be read."""
    try:
        settings, storage_timeout, observer = observer_of(flags | {"checkpoint_dir": place.where})
        return as_json(settings.run, storage_timeout.call(observer.collect))
    except SidecarError as error:
        return {"run": place.name, "error": str(error)}


def _cells(place: Place, status: dict[str, Any]) -> tuple[str, ...]:
    if "error" in status:
        return status["run"], status["error"], "", "", "", place.where
    newest = status["evaluation"]
    numbers = [
        f"{name} {number(value['hex'] if value['value'] is None else value['value'])}"
        for values in (newest["metrics"].values() if newest else ())
        for name, value in values.items()
    ]
    name = newest["checkpoint"] if newest else "none yet" if status["run_id"] else "not begun"
    return status["run"], name, "  ".join(numbers), str(status["pending"]), str(status["evaluated"]), place.where
