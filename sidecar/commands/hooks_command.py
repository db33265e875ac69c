"""Declare `sidecar hooks test`, which `cli` adds to the other commands."""

from typing import Annotated, Any, Final

import typer

from sidecar.commands.options import examples, takes_settings

_FAILED: Final = 1

app = typer.Typer(no_args_is_help=True, help="Try the commands and URLs that are called after a result.")


@app.callback()
def hooks() -> None:
    """Try the commands and URLs that are called after a result."""


@app.command(name="test", epilog=examples("sidecar hooks test", "sidecar hooks test best --config sidecar.toml"))
@takes_settings(directory=False)
def try_now(
    flags: dict[str, Any],
    event: Annotated[
        str | None,
        typer.Argument(metavar="EVENT", help="Only this hook: result, best, failure, nan or end.", show_default=False),
    ] = None,
) -> None:
    """Send a sample event to each hook now, and print whether it was taken."""
    from sidecar.commands.hooks import try_hooks  # noqa: PLC0415 - start-up time, as in `cli`
    from sidecar.commands.load import load_settings  # noqa: PLC0415

    raise typer.Exit(0 if try_hooks(load_settings(flags), event) else _FAILED)
