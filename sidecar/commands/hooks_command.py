"""Declare `sidecar hooks test`, which `cli` adds to the other commands."""

from typing import Annotated, Any, Final

import typer

from sidecar.commands.options import examples, takes_settings

_FAILED: Final = 1

app = typer.Typer(no_args_is_help=True, help="Try the commands and URLs that are called after a result.")


@app.callback()
def hooks() -> None:
    """Try the commands and URLs that are called after a result."""


@app.command(name="test", epilog=examples("sidecar hooks test", "sidecar hooks test ckpts best"))
@takes_settings(directory=False)
def try_now(
    flags: dict[str, Any],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] [EVENT]",
            help="The directory of the checkpoints, and one of the hooks: result, best, failure, nan or end.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Send a sample event to each hook now, and print whether it was taken."""
    from sidecar.commands.hooks import directory_and_event, try_hooks  # noqa: PLC0415 - start-up time, as in `cli`
    from sidecar.commands.load import load_settings  # noqa: PLC0415

    directory, event = directory_and_event(words or [])
    settings = load_settings(flags | {"checkpoint_dir": flags["checkpoint_dir"] or directory})
    raise typer.Exit(0 if try_hooks(settings, event) else _FAILED)
