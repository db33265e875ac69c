"""`sidecar status` on a terminal or in a pipe: once, or again and again."""

import contextlib
import json
from collections.abc import Callable
from typing import Any, NoReturn

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sidecar.commands.overview import as_json, lines
from sidecar.commands.patience import Patience
from sidecar.commands.show import printable
from sidecar.commands.standing import Onlooker, Standing, meet
from sidecar.errors import StorageError

Pause = Callable[[float], None]


def print_once(
    run: str, onlooker: Onlooker, patience: Patience, *, seconds: float, pause: Pause, json_lines: bool
) -> None:
    """Look for up to so many seconds who lives, then print how the run stands."""
    console, waiting = Console(), Console(stderr=True)
    shown: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if waiting.is_terminal and seconds:
        shown = waiting.status("watching heartbeats …")
    with shown:
        found = patience.ask(lambda: _meet_and_look(onlooker, seconds, pause))
    if json_lines:
        typer.echo(json.dumps(as_json(run, found), indent=1, allow_nan=False))
    else:
        console.print(Group(*lines(run, found)))


def print_again(
    run: str, onlooker: Onlooker, patience: Patience, *, every_seconds: float, pause: Pause, json_lines: bool
) -> NoReturn:
    """Print it every so many seconds: in place on a terminal, else as a new block, or as one line of JSON.

    Storage that fails is told in its place and asked again; ended by what `pause` raises.
    """
    console = Console()
    if json_lines or not console.is_terminal:
        while True:
            try:
                found = patience.ask(onlooker.look)
            except StorageError as error:
                _reject_final(error)
                typer.echo(f"sidecar: {error}", err=True)
            else:
                _print_block(console, run, found, json_lines=json_lines)
            pause(every_seconds)
    with Live(console=console, auto_refresh=False) as live:
        last: list[RenderableType] = []
        while True:
            try:
                last = list(lines(run, patience.ask(onlooker.look)))
                live.update(Group(*last), refresh=True)
            except StorageError as error:
                _reject_final(error)
                live.update(Group(*last, Text(printable(str(error)), style="red")), refresh=True)
            pause(every_seconds)


def _meet_and_look(onlooker: Onlooker, seconds: float, pause: Pause) -> Standing:
    meet(onlooker, seconds, pause)
    return onlooker.look()


def _print_block(console: Console, run: str, found: Standing, *, json_lines: bool) -> None:
    if json_lines:
        typer.echo(json.dumps(as_json(run, found), allow_nan=False))
    else:
        console.print(Group(*lines(run, found), ""))


def _reject_final(error: StorageError) -> None:
    if not error.retryable:
        raise error
