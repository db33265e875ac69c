"""Carry out `sidecar requeue` as a person typed it: find the run, reopen the checkpoints, say what comes of it."""

import os
import time
from dataclasses import dataclass
from typing import Any

import typer

from sidecar.commands.catalog_and_rules import export_rule
from sidecar.commands.hints import evaluates_again
from sidecar.commands.load import configured_directory
from sidecar.commands.requeue import Request, folder_and_names, outlook, requeue
from sidecar.commands.status.collect import OBSERVED_BEATS, observe_for
from sidecar.commands.status.observe import observer_of
from sidecar.errors import SettingsError
from sidecar.policy.node_identity import node_name
from sidecar.retention.exports.export_folder import names_in, opened_exports
from sidecar.settings import Settings
from sidecar.system.plain_text import printable


@dataclass(frozen=True, slots=True)
class Typed:
    """The checkpoints and the switches of the command line."""

    checkpoints: tuple[str, ...]
    all_failed: bool
    again: bool
    all_evaluated: bool


def requeue_typed(flags: dict[str, Any], typed: Typed, *, dry_run: bool, wait_seconds: float) -> None:
    """Reopen the checkpoints, and print each one.

    Raises:
        SettingsError: if no checkpoint is named, or the switches contradict each other.
    """
    if typed.all_evaluated and not typed.again:
        raise SettingsError("--all means all that were evaluated: add --again, or give --all-failed for what failed")
    place, names = folder_and_names(typed.checkpoints, flags["checkpoint_dir"], configured_directory(flags))
    if not names and not typed.all_failed and not typed.all_evaluated:
        more = " or --all" if typed.again else ""
        raise SettingsError(f"nothing is named: give names of checkpoints, such as ckpt-5, or --all-failed{more}")
    settings, storage_timeout, observer = observer_of(flags | {"checkpoint_dir": flags["checkpoint_dir"] or place})
    waits = flags["wait"] is not False
    reopened = storage_timeout.call(
        lambda: requeue(
            observer.storage,
            observer.catalog,
            Request(names, all_failed=typed.all_failed, again=typed.again, all_evaluated=typed.all_evaluated),
            by=node_name(settings, os.environ),
            clock=observer.clock,
            wait_seconds=wait_seconds if waits else 0.0,
            pause=time.sleep,
            report=lambda sentence: typer.echo(printable(sentence), err=True),
            dry_run=dry_run,
            command=lambda name: evaluates_again(settings, name),
            exported=_exported(settings),
        )
    )
    one, several = ("would be", "would be") if dry_run else ("is", "are")
    for settlement in reopened:
        typer.echo(printable(f"{settlement.name} {one} requeued ({settlement.reason})"))
    if typed.all_evaluated and reopened:
        typer.echo(f"{len(reopened)} {one if len(reopened) == 1 else several} requeued")
    if reopened and waits and not dry_run:
        storage_timeout.call(lambda: observe_for(observer, OBSERVED_BEATS * settings.beat_seconds, time.sleep))
        typer.echo(printable(outlook(storage_timeout.call(observer.collect))))


def _exported(settings: Settings) -> list[str]:
    """Return the names of the exports, if the settings here export any: only then daemons turn them into pins again."""
    if export_rule(settings) is None:
        return []
    try:
        with opened_exports(settings.run_dir) as exports:
            return names_in(exports)
    except OSError:
        return []
