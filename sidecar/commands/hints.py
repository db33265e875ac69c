"""Write commands as a person would type them here, so that a proposal works when it is pasted."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from sidecar.settings import Settings


def typed(settings: Settings, command: str, *words: str, directory: Path | None = None) -> str:
    """Return `sidecar COMMAND …` with all options that identify the run."""
    place = settings.checkpoint_dir if directory is None else directory
    parts = [program(), command, shlex.quote(short(place)), *words]
    parts += _unless_derived(settings)
    return " ".join(parts)


def evaluates_again(settings: Settings, name: str) -> str:
    """Return the command that evaluates a checkpoint again, by its name in the directory."""
    if "/" in name:  # in a sub-folder, which the path alone would name as the checkpoint directory
        return typed(settings, "requeue --again -d", shlex.quote(name))
    return typed(settings, "requeue --again", directory=settings.checkpoint_dir / name)


def short(path: Path) -> str:
    """Return a path as a person would type it in the current directory."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def program() -> str:
    """Return `sidecar`, or its path if it is in a virtual environment that is not activated."""
    on_path, own = shutil.which("sidecar"), Path(sys.argv[0])
    if own.name != "sidecar" or (on_path is not None and own.exists() and Path(on_path).samefile(own)):
        return "sidecar"
    return shlex.quote(short(own))


def _unless_derived(settings: Settings) -> list[str]:
    """Return the options for settings that do not follow from the checkpoint directory alone."""
    given: dict[str, Any] = {"checkpoint_dir": settings.checkpoint_dir}
    parts = []
    if settings.state_dir != Settings(**given).state_dir:
        parts += ["--state-dir", shlex.quote(short(settings.state_dir))]
        given["state_dir"] = settings.state_dir
    if settings.run != Settings(**given).run:
        parts += ["--run", settings.run]
    return parts
