"""Print the findings of `sidecar check`, and a line about all of them."""

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from sidecar.commands.check.command import findings
from sidecar.commands.check.finding import Finding
from sidecar.commands.from_settings import make_catalog
from sidecar.commands.interrupts import Interrupts
from sidecar.commands.load import load_in_time, warn
from sidecar.commands.terminal import elapsed
from sidecar.commands.worker_pool import make_workers
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.process import Post
from sidecar.system.plain_text import printable


def check(flags: dict[str, Any], *, quick: bool, as_json: bool) -> bool:
    """Check this machine's setup, print the findings, and return whether none is a failure.

    `quick`: the task is imported, and nothing is evaluated.
    """
    settings, storage_timeout = load_in_time(flags)
    console, found = Console(stderr=as_json), list[Finding]()

    def new_workers(post: Post) -> WorkerPool:
        name = f"check.{secrets.token_hex(4)}"  # workers have their names for ever, and their logs, too
        return make_workers(settings, os.environ, name, post, warn=warn, most=1)

    trials = findings(
        settings,
        os.environ,
        catalog=make_catalog(settings, once=True, progress=storage_timeout.answered),
        storage_timeout=storage_timeout,
        make_workers=new_workers,
        quick=quick,
    )
    with Interrupts().received(), elapsed(console, "checking; the task takes longest"):
        for finding in trials:
            found.append(finding)
            if not as_json:
                console.print(_mark(finding), Text(printable(f"{finding.what:<12}{finding.text}")), soft_wrap=True)
    is_ok = all(finding.ok for finding in found)
    if as_json:
        body = {"ok": is_ok, "summary": summary(found), "findings": [asdict(finding) for finding in found]}
        typer.echo(json.dumps(body, indent=1))
    else:
        console.print(Text(printable(summary(found))), soft_wrap=True)
    return is_ok


def summary(found: Sequence[Finding]) -> str:
    """Return a line about all findings: how many failed, and what was not tried."""
    failed = sum(not finding.ok for finding in found)
    problems = "No problem found." if not failed else "1 problem found." if failed == 1 else f"{failed} problems found."
    untried = [finding.text[finding.text.index("Not tried") :] for finding in found if not finding.tried]
    return " ".join([problems, *(f"{text}." for text in untried)])


def _mark(finding: Finding) -> Text:
    if not finding.ok:
        return Text("FAIL", "red")
    if finding.doubtful:
        return Text("warn", "yellow")
    return Text("ok  ", "green") if finding.tried else Text("--  ", "yellow")
