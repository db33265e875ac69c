"""Read the settings of a command from its options, check that their places fit, and print warnings about them."""

import contextlib
import os
from pathlib import Path
from typing import Any

import typer

from sidecar.checkpoints.subfolder_hint import similar_folder
from sidecar.commands.framework import with_framework
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.coordination.run import find_run
from sidecar.coordination.state_directory import StateDirectory
from sidecar.coordination.storage import Storage
from sidecar.errors import SettingsError, StateUnavailableError, StorageError
from sidecar.settings import FileHere, Settings, file_here, load
from sidecar.system.bucket_folder import BucketFolder, place_of
from sidecar.system.plain_text import printable


def warn(sentence: str) -> None:
    """Print a warning or an error to standard error."""
    typer.echo(printable(f"sidecar: {sentence}"), err=True)


def settings_file(flags: dict[str, Any]) -> FileHere:
    """Return the settings file of the current directory, if it is read; warn if it is refused."""
    if flags["config"] is not None or os.environ.get("SIDECAR_CONFIG"):
        return FileHere()
    here = file_here()
    if here.refused is not None:
        warn(here.refused)
    return here


def load_settings(flags: dict[str, Any]) -> Settings:
    """Read the settings, and report their file if nobody named it.

    The framework is found out if the task's file tells it. Commands that evaluate ask for it otherwise.
    """
    here = settings_file(flags)
    if here.path is not None:
        warn(f"settings are read from {here.path}")
    settings = load(flags)
    with contextlib.suppress(SettingsError, StorageError):
        return with_framework(settings, Path.cwd())
    return settings


def load_in_time(flags: dict[str, Any]) -> tuple[Settings, StorageTimeout]:
    """Read the settings, and return the limit of later calls to storage. Resolving the directories may hang, too."""
    seconds = Settings.model_fields["storage_timeout_seconds"].default
    place = str(flags["checkpoint_dir"] or "the checkpoint directory")
    settings = StorageTimeout(seconds, place).call(lambda: load_settings(flags))
    return settings, StorageTimeout(settings.storage_timeout_seconds, place_of(settings.run_dir))


def configured_directory(flags: dict[str, Any]) -> Path | None:
    """Return the directory that file and environment name; None if they name none, or cannot be understood."""
    try:
        return load(flags).checkpoint_dir
    except SettingsError:  # reported when they are loaded with the directory
        return None


def check_place(settings: Settings, storage: Storage) -> None:
    """Raise an error if the directories of the settings cannot belong to one run. `storage`: that of its state.

    `SettingsError`: there is neither a checkpoint directory nor a run, or the run is that of another directory.
    `StateUnavailableError`: the state of the run is unavailable, as when its storage is not mounted.
    """
    checkpoint_dir, run_dir = settings.checkpoint_dir, settings.run_dir
    if not isinstance(checkpoint_dir, BucketFolder) and not checkpoint_dir.is_dir() and not run_dir.is_dir():
        remedy = similar_folder(checkpoint_dir) or "name the directory that training saves in"
        raise SettingsError(
            f"checkpoint_dir {str(checkpoint_dir)!r} does not exist, and there is no run in {run_dir}: {remedy}"
        )
    place, run = StateDirectory(checkpoint_dir, run_dir), find_run(storage)
    if run is None:
        place.check_beginning()
        return
    with contextlib.suppress(StateUnavailableError):  # reading the status needs no checkpoint directory
        place.check(run)
