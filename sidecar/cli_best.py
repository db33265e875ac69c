"""Declare the command `sidecar best`. `cli` adds it to the others."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sidecar.commands.options import examples, takes_settings
from sidecar.errors import SettingsError

EPILOG: Final = examples("sidecar best ckpts", "sidecar best ckpts --json", "sidecar best ckpts --copy-to models/new")


@takes_settings()
def best(
    flags: dict[str, Any],
    copy_to: Annotated[
        Path | None,
        typer.Option(help="Copy it to this new folder, and print its path there.", metavar="PATH", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what is known of it.", metavar="", show_default=False)
    ] = False,
) -> None:
    """Print the path of the best exported checkpoint (export_best)."""
    from sidecar.commands.best import print_best

    if copy_to is not None and not copy_to.name:
        raise SettingsError(f"--copy-to {copy_to}: write the path of a new folder")
    print_best(flags, as_json=as_json, copy_to=copy_to)
