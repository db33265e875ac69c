"""Print the findings of `sidecar check`."""

import os
import secrets
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from sidecar.commands.catalog_and_rules import make_catalog
from sidecar.commands.check.command import findings
from sidecar.commands.load import load_in_time, warn
from sidecar.commands.terminal import elapsed
from sidecar.commands.worker_pool import make_workers
from sidecar.plain_text import printable


def check(flags: dict[str, Any]) -> bool:
    """Check this machine's setup, print the findings, and return whether none is a failure."""
    settings, storage_timeout = load_in_time(flags)
    console, failed = Console(), 0
    name = f"check.{secrets.token_hex(4)}"
    trials = findings(
        settings,
        os.environ,
        catalog=make_catalog(settings, once=True, progress=storage_timeout.answered),
        storage_timeout=storage_timeout,
        make_workers=lambda post: make_workers(settings, os.environ, name, post, warn=warn),
        search_path=str(Path.cwd()),
    )
    with elapsed(console, "checking; the import of the task takes longest"):
        for finding in trials:
            mark = Text("ok  ", "green") if finding.ok else Text("FAIL", "red")
            console.print(mark, Text(printable(f"{finding.what:<12}{finding.text}")), soft_wrap=True)
            failed += not finding.ok
    return not failed
