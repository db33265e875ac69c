"""Write commands as a person would type them here, so that a proposal works when it is pasted."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from sidecar.coordination.run import RUN_PATH
from sidecar.settings import Settings
from sidecar.system.bucket_folder import BucketFolder, BucketState


def typed(settings: Settings, command: str, *words: str) -> str:
    """Return `sidecar COMMAND DIR …` with all options that identify the run."""
    parts = [program(), command, shlex.quote(short(settings.checkpoint_dir)), *words]
    parts += _unless_derived(settings)
    return " ".join(parts)


def evaluates_again(settings: Settings, name: str) -> str:
    """Return the command that evaluates a checkpoint again, by its name in the directory."""
    return typed(settings, "requeue", shlex.quote(name), "--again")


def no_run(settings: Settings) -> str:
    """Return why there is no run here, and what to type: another --run or --state-dir, or the command that begins it.

    This reads the state directory, and may block for as long as its storage does.
    """
    begun, apart = f"run {settings.run}: no daemon has started yet", settings.state_dir
    usual = Settings(checkpoint_dir=settings.checkpoint_dir).state_dir
    if apart != usual and (usual / settings.run / RUN_PATH).is_file():
        return f"{begun} in {short(apart)}; its state lies in {short(usual)}: leave --state-dir out"
    if others := sorted(path.parent.name for path in apart.glob(f"*/{RUN_PATH}")):
        return f"{begun}; runs in {short(apart)}: {', '.join(others)}"
    return f"{begun}; `{typed(settings, 'run')}` starts one"


def no_result(settings: Settings) -> str:
    """Return that nothing has been evaluated yet, and what to type."""
    return f"run {settings.run}: no result yet; `{typed(settings, 'status')}` shows what is going on"


def short(path: Path) -> str:
    """Return a path as a person would type it in the current directory."""
    if isinstance(path, BucketFolder | BucketState):
        return path.url
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
