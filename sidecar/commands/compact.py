"""Carry out `sidecar compact`: move all old plans of a journal into segments at once, while daemons run or not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console

from sidecar.commands.hints import no_run
from sidecar.commands.status.observe import observer_of
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.commands.terminal import is_screen
from sidecar.coordination.compaction import Compaction, PassCounts, single_files
from sidecar.coordination.run import RUN_PATH, read_run
from sidecar.coordination.storage import PosixStorage, Storage
from sidecar.settings import Settings
from sidecar.system.clock import Clock, SystemClock

_SHOWN_SECONDS: Final = {True: 0.2, False: 10.0}  # between two reports of the progress, on a terminal and elsewhere


def compact(flags: dict[str, Any], *, dry_run: bool) -> None:
    """Move old plans into segments, and print what was done. Raises as `Compaction.work`."""
    storage, timeout, settings = _opened(flags)
    run = timeout.call(lambda: read_run(storage))
    if run is None:
        typer.echo("" if settings is None else timeout.call(lambda: no_run(settings)))
        return
    report = Progress(SystemClock(), Console(stderr=True))
    made, before = timeout.call(lambda: move(storage, run, report.show, dry_run=dry_run))
    report.end()
    typer.echo(_sentence(made, before, dry_run=dry_run))


def move(storage: Storage, run: str, show: Callable[[int, int], None], *, dry_run: bool) -> tuple[PassCounts, int]:
    """Move all old plans of a run, and return what was done, and how many single files there were before.

    `show` is called after each step with the number of plans that are in segments and of all.
    """
    plans, outcomes = single_files(storage)
    compaction = Compaction(storage, run)
    newest = max(plans, default=0)
    for _ in compaction.carry_out(max(newest - 1, 0), dry_run=dry_run):  # whether the newest is closed makes no odds
        show(compaction.made.through, newest)
    return compaction.made, len(plans) + len(outcomes)


class Progress:
    """Show on standard error how far the command is: one line on a terminal, else a line every ten seconds."""

    def __init__(self, clock: Clock, console: Console) -> None:
        self._clock, self._is_screen = clock, is_screen(console)
        self._next = clock.now() + _SHOWN_SECONDS[self._is_screen]
        self._drawn = False

    def show(self, done: int, of: int) -> None:
        """Show the progress, unless that was done a moment ago."""
        if self._clock.now() < self._next:
            return
        self._next = self._clock.now() + _SHOWN_SECONDS[self._is_screen]
        line = f"plans up to {done:,} of {of:,} are in segments"
        typer.echo(f"\r{line}" if self._is_screen else line, err=True, nl=not self._is_screen)
        self._drawn = self._is_screen

    def end(self) -> None:
        """Clear the line."""
        if self._drawn:
            typer.echo("\r\x1b[K", err=True, nl=False)


def _opened(flags: dict[str, Any]) -> tuple[Storage, StorageTimeout, Settings | None]:
    """Return the storage of the run, its limit in time, and the settings.

    The directory may be that of the checkpoints, or the state directory of one run, which needs no settings.
    """
    given = flags["checkpoint_dir"]
    timeout = StorageTimeout(Settings.model_fields["storage_timeout_seconds"].default, str(given))
    if given is not None and timeout.call((Path(given) / RUN_PATH).is_file):
        return PosixStorage(Path(given), timeout.answered), timeout, None
    settings, timeout, observer = observer_of(flags, reads_only=False)
    return observer.storage, timeout, settings


def _sentence(made: PassCounts, before: int, *, dry_run: bool) -> str:
    """Return what was done, or would be, as a sentence."""
    if not made.segments and not made.removed:
        return f"nothing to move: the newest 1,000 to 2,000 plans stay single files, and there are {before:,} of these"
    moved = f"{made.plans:,} plans ({made.records:,} files, {made.record_bytes / 1e6:,.1f} MB)"
    into = f"{made.segments:,} segments ({made.segment_bytes / 1e6:,.1f} MB)"
    if dry_run:
        return f"would move {moved} into {into}; {before - made.records:,} single files would be left"
    return f"moved {moved} into {into}; removed {made.removed:,} single files, {before - made.removed:,} are left"
