"""Write a settings file and a task to fill in, from what the current directory holds, for `sidecar init`.

It overwrites no file, and imports no module.
"""

import ast
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.commands.bootstrap import make_catalog
from sidecar.commands.hints import short
from sidecar.errors import SettingsError, StorageError
from sidecar.settings import Settings

SETTINGS_FILE: Final = "sidecar.toml"
TASK_FILE: Final = "sidecar_task.py"
_BUILDER: Final = "build_model"
_LIKELY: Final = ("ckpts", "checkpoints", "ckpt", "checkpoint", "saved", "models", "weights")
_PYTHON_BYTES: Final = 1024 * 1024  # more is no source that a person wrote
_FILES_READ: Final = 200
_SETTINGS: Final = """\
# Settings of sidecar-evaluator, read by every `sidecar` command that is started in this directory.
checkpoint_dir = {directory}
task = {task}

# replicas = 2                # worker processes on this node
# every_steps = 1000          # evaluate the first checkpoint of each thousand steps only
# chief_nodes = ["node-0"]    # in a job of several nodes: those that never evaluate
"""
_TASK: Final = """\
\"\"\"What `sidecar` evaluates checkpoints with. It is imported in worker processes only.\"\"\"

import keras
import numpy as np

from sidecar import Task
{imported}

{builder}def test_set():
    # Arrays (x, y), or a tf.data.Dataset of them, one example each.
    raise NotImplementedError("{file}: return your test set in test_set()")


def task():
    return Task(
        build_model=build_model,
        eval_sets={{"test": test_set}},
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        loss=keras.losses.SparseCategoricalCrossentropy(),
        batch_size=64,
    )
"""
_OWN_BUILDER: Final = """\
def build_model():
    # The model that training builds: checkpoints are restored into it.
    raise NotImplementedError("{file}: return your model in build_model()")


"""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The content of the files: the directory of checkpoints, their number, and the module that builds the model."""

    directory: Path
    checkpoints: int
    builder: str | None


def propose(here: Path, directory: Path | None) -> Proposal:
    """Look for checkpoints and a model. Raises `SettingsError` if no directory is named, and none looks right."""
    counted = {place: _count(place) for place in ([directory] if directory is not None else _candidates(here))}
    if not counted:
        raise SettingsError(
            "no directory here holds checkpoints: name the one that training will save in, as in `sidecar init ckpts`"
        )
    best = max(counted, key=lambda place: counted[place])
    return Proposal(best, counted[best], _builder(here))


def write(here: Path, proposal: Proposal, tell: Callable[[str], None]) -> None:
    """Write the missing files, and report each. Raises `SettingsError` if the directory cannot be written to."""
    if proposal.builder is None:
        imported, builder = "", _OWN_BUILDER.format(file=TASK_FILE)
    else:
        imported, builder = f"from {proposal.builder} import {_BUILDER}\n", ""
    task = f"{TASK_FILE}:task"
    settings = _SETTINGS.format(directory=json.dumps(short(proposal.directory)), task=json.dumps(task))
    _create(here / SETTINGS_FILE, settings, tell)
    _create(here / TASK_FILE, _TASK.format(imported=imported, builder=builder, file=TASK_FILE), tell)
    found = "no checkpoint yet" if not proposal.checkpoints else f"complete checkpoints: {proposal.checkpoints}"
    tell(f"checkpoints: {short(proposal.directory)} ({found})")
    if proposal.builder is not None:
        tell(f"model: {_BUILDER} of {proposal.builder}.py")
    missing = "test_set()" if proposal.builder is not None else "build_model() and test_set()"
    tell(f"Now fill in {missing} in {TASK_FILE}. Then: sidecar check")


def _create(path: Path, text: str, tell: Callable[[str], None]) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        tell(f"kept {path.name}, which was there")
        return
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from error
    tell(f"wrote {path.name}")


def _candidates(here: Path) -> list[Path]:
    """Return the directories here that hold checkpoints; if there is none, those with a likely name."""
    there = sorted(each for each in here.iterdir() if each.is_dir() and not each.name.startswith("."))
    holding = [each for each in there if _count(each)]
    return holding or [each for each in there if each.name in _LIKELY]


def _count(directory: Path) -> int:
    if not directory.is_dir():
        return 0
    try:
        return len(make_catalog(Settings(checkpoint_dir=directory, run="any"), once=True).scan().found)
    except StorageError:
        return 0


def _builder(here: Path) -> str | None:
    """Return the only module here that defines `build_model` and does nothing but define things."""
    names = sorted(name for name in os.listdir(here) if name.endswith(".py") and name != TASK_FILE)  # noqa: PTH208 - names
    found = [name for name in names[:_FILES_READ] if _defines_only(here / name)]
    return found[0].removesuffix(".py") if len(found) == 1 and found[0][:-3].isidentifier() else None


def _defines_only(path: Path) -> bool:
    try:
        if not path.is_file() or path.stat().st_size > _PYTHON_BYTES:
            return False
        body = ast.parse(path.read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    harmless = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    rest = [node for node in body if not isinstance(node, harmless) and not _is_guard(node)]
    return not rest and any(isinstance(node, ast.FunctionDef) and node.name == _BUILDER for node in body)


def _is_guard(node: ast.stmt) -> bool:
    """Return whether it is a docstring, or `if __name__ == "__main__"`."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
