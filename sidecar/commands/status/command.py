"""Print `sidecar status` once, or repeatedly, on a terminal or into a pipe."""

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, NoReturn

import typer
from rich.console import Console, Group

from sidecar.commands.status.collect import RunObserver, RunStatus, observe_for
from sidecar.commands.status.render import as_json, lines
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.commands.terminal import is_screen
from sidecar.errors import StorageError
from sidecar.system.plain_text import printable

Pause = Callable[[float], None]


def print_once(
    run: str, observer: RunObserver, timeout: StorageTimeout, *, seconds: float, pause: Pause, json_lines: bool
) -> None:
    """Observe heartbeats for up to `seconds`, then print the status of the run."""
    console, waiting = Console(), Console(stderr=True)
    shown: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if waiting.is_terminal and seconds:
        shown = waiting.status("watching heartbeats …")
    with shown:
        status = timeout.call(lambda: _observe_and_collect(observer, seconds, pause))
    if json_lines:
        typer.echo(json.dumps(as_json(run, status), indent=1, allow_nan=False))
    else:
        console.print(Group(*lines(run, status)))


def print_again(
    run: str,
    observer: RunObserver,
    timeout: StorageTimeout,
    *,
    every_seconds: float,
    pause: Pause,
    json_lines: bool,
) -> NoReturn:
    """Print the status every `every_seconds`: in place on a terminal, else as a new block, or as one line of JSON.

    If the storage fails, the error is printed instead, and the next round tries again. An error that is not retryable
    is raised, and so is an exception of `pause`.
    """
    console = Console()
    if not json_lines and is_screen(console):
        from sidecar.commands.status.screen import watch  # noqa: PLC0415 - only a terminal needs it

        # COLUMNS and LINES, if the shell exports them, do not follow the terminal's size.
        own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        watch(Console(_environ=own), run, observer, timeout, every_seconds=every_seconds, pause=pause)
    while True:
        try:
            status = timeout.call(observer.collect)
        except StorageError as error:
            if not error.retryable:
                raise
            typer.echo(f"sidecar: {printable(str(error))}", err=True)
        else:
            _print_block(console, run, status, json_lines=json_lines)
        pause(every_seconds)


def _observe_and_collect(observer: RunObserver, seconds: float, pause: Pause) -> RunStatus:
    if seconds:  # else the status itself takes the only look
        observe_for(observer, seconds, pause)
    return observer.collect()


def _print_block(console: Console, run: str, status: RunStatus, *, json_lines: bool) -> None:
    if json_lines:
        typer.echo(json.dumps(as_json(run, status), allow_nan=False))
    else:
        console.print(Group(*lines(run, status), ""))
