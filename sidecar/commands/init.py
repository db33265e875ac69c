"""Implement `sidecar init`: write a settings file and a template of a task.

Both are made from the checkpoints and Python files in the current directory. No file is overwritten, and no Python file
is imported.
"""

import ast
import json
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sidecar.checkpoints.subfolder_hint import remedy_below, similar_folder
from sidecar.commands.framework import framework_of_files
from sidecar.commands.from_settings import make_catalog
from sidecar.commands.hints import short
from sidecar.commands.task_file import is_installed
from sidecar.errors import SettingsError, StorageError
from sidecar.evaluation.framework_traits import OURS, traits_of
from sidecar.settings import Settings
from sidecar.system.training_python import training_python

SETTINGS_FILE: Final = "sidecar.toml"
TASK_FILE: Final = "sidecar_task.py"
_BUILDER: Final = "build_model"
_LIKELY: Final = ("ckpts", "checkpoints", "ckpt", "checkpoint", "saved", "models", "weights")
_PYTHON_BYTES: Final = 1024 * 1024  # a larger file was not written by a person
_FILES_READ: Final = 200
_SETTINGS: Final = """\
# Settings of sidecar-evaluator, read by every `sidecar` command that is started in this directory.
checkpoint_dir = {directory}
task = {task}
{python}

# replicas = 2                # worker processes on this node
# every_steps = 1000          # evaluate the first checkpoint of each thousand steps only
# chief_nodes = ["node-0"]    # in a job of several nodes: those that never evaluate
"""
_NO_PYTHON: Final = """\
# worker_python = "/path/to/train/bin/python"   # the Python that trains, if this program has another one"""
_OWN_BUILDER: Final = """\
def build_model():
    # Return the same model as training: checkpoints are restored into it.
{hint}    raise NotImplementedError("{file}: return your model in build_model()")


"""


_HINTS: Final = {
    "pretrained_folder": """\
    # For example, with the class that training uses:
    #   from transformers import AutoConfig, AutoModelForSequenceClassification
    #   return AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained("the folder of a checkpoint"))
"""
}
"""Hints for `build_model`, by the format of the checkpoints, where it is not obvious."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Hold the choices for the files: the checkpoint directory, its number of checkpoints, and the model's module.

    `framework`: the key of the task's template. `formats`: those of the checkpoints that were found.
    """

    directory: Path
    checkpoints: int
    builder: str | None
    framework: str = "tensorflow"
    formats: tuple[str, ...] = ()


def propose(here: Path, directory: Path | None, framework: str | None = None) -> Proposal:
    """Find the checkpoint directory, the model, and the framework unless it is given.

    Raises `SettingsError` if no directory is named or found, or for a framework without a template.
    """
    if framework is not None and traits_of(framework).template is None:
        raise SettingsError(
            f"--framework {framework}: there is a task to start from for {' and '.join(_with_template())}"
        )
    counts = {folder: _count(folder) for folder in ([directory] if directory is not None else _candidates(here))}
    if not counts:
        raise SettingsError(
            "no directory here holds checkpoints: name the one that training will save in, as in `sidecar init ckpts`"
        )
    best = max(counts, key=lambda folder: counts[folder])
    formats = tuple(dict.fromkeys(_formats(best)))
    return Proposal(
        directory=best,
        checkpoints=counts[best],
        builder=_builder(here),
        framework=framework or _framework(here, best),
        formats=formats,
    )


def write(here: Path, proposal: Proposal, report: Callable[[str], None]) -> None:
    """Write the missing files, and report each. Raises `SettingsError` if the directory cannot be written to."""
    if proposal.builder is None:
        hint = "".join(_HINTS.get(format_, "") for format_ in proposal.formats)
        imported, builder = "", _OWN_BUILDER.format(file=TASK_FILE, hint=hint)
    else:
        imported, builder = f"from {proposal.builder} import {_BUILDER}\n", ""
    task = f"{TASK_FILE}:task"
    traits = traits_of(proposal.framework)
    package = traits.detected_alone or "numpy"
    found = training_python(package)
    line = _NO_PYTHON if found is None else f"worker_python = {json.dumps(str(found[0]))}"
    settings = _SETTINGS.format(directory=json.dumps(short(proposal.directory)), task=json.dumps(task), python=line)
    is_new = _create(here / SETTINGS_FILE, settings, report)
    template = traits.template or ""
    _create(here / TASK_FILE, template.format(imported=imported, builder=builder, file=TASK_FILE), report)
    found_there = f"complete checkpoints: {proposal.checkpoints}"
    if not proposal.checkpoints:
        elsewhere = similar_folder(proposal.directory) or remedy_below(proposal.directory)
        found_there = f"no checkpoint yet; {elsewhere}" if elsewhere else "no checkpoint yet"
    report(f"checkpoints: {short(proposal.directory)} ({found_there})")
    if proposal.builder is not None:
        report(f"model: {_BUILDER} of {proposal.builder}.py")
    if found is not None:
        _report_python(here / SETTINGS_FILE, found, line, report, is_new=is_new)
    elif is_new and not is_installed(package):
        example = 'worker_python = "/path/to/train/bin/python"'
        report(f"no Python with {package} was found: write the one that trains into {SETTINGS_FILE}, as in {example}")
    missing = "test_set()" if proposal.builder is not None else "build_model() and test_set()"
    report(f"Now fill in {missing} in {TASK_FILE}. Then: sidecar check")


def _report_python(
    path: Path, found: tuple[Path, str], line: str, report: Callable[[str], None], *, is_new: bool
) -> None:
    """Report the Python that evaluates, or the line that a settings file of the user lacks."""
    python, source = found
    if is_new:
        report(f"Python that evaluates: {python} ({source})")
    elif _value_in(path, "worker_python") != str(python):
        report(f"to evaluate with the Python of {source}, write into {path.name}: {line}")


def _value_in(path: Path, key: str) -> Any:
    """Return what a settings file says; None if it says nothing, or cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")).get(key)
    except (OSError, ValueError):
        return None


def _create(path: Path, text: str, report: Callable[[str], None]) -> bool:
    """Create a file unless it exists, report which of both happened, and return whether it was created."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        report(f"kept {path.name}, which existed already")
        return False
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from error
    report(f"wrote {path.name}")
    return True


def _candidates(here: Path) -> list[Path]:
    """Return the directories in `here` that hold checkpoints, else `here` if it does, else those with a likely name."""
    folders = sorted(path for path in here.iterdir() if path.is_dir() and not path.name.startswith("."))
    with_checkpoints = [folder for folder in folders if _count(folder)] or ([here] if _count(here) else [])
    return with_checkpoints or [folder for folder in folders if folder.name in _LIKELY]


def _count(directory: Path) -> int:
    """Return the number of complete checkpoints in a directory; 0 if it cannot be read."""
    return len(_formats(directory))


def _formats(directory: Path) -> list[str]:
    """Return the format of each complete checkpoint in a directory; none if it cannot be read."""
    if not directory.is_dir():
        return []
    try:
        found = make_catalog(Settings(checkpoint_dir=directory, run="any"), once=True).scan().found
    except StorageError:
        return []
    return [each.checkpoint.format for each in found]


def _framework(here: Path, directory: Path) -> str:
    """Return the framework that can restore the checkpoints, else the one that the Python files import."""
    possible, found = _with_template(), set(_formats(directory))
    of_formats = [name for name in possible if found & set(traits_of(name).formats or ())]
    if len(of_formats) == 1:
        return of_formats[0]
    imported = framework_of_files(here / name for name in _python_files(here))
    return imported if imported in possible else possible[0]


def _with_template() -> list[str]:
    """Return the frameworks of ours that have a task to start from."""
    return [name for name in OURS if traits_of(name).template is not None]


def _python_files(here: Path) -> list[str]:
    names = sorted(name for name in os.listdir(here) if name.endswith(".py"))  # noqa: PTH208 - names
    return [name for name in names[:_FILES_READ] if name != TASK_FILE and _is_small(here / name)]


def _is_small(path: Path) -> bool:
    """Return whether a file may have been written by a person."""
    try:
        return path.is_file() and path.stat().st_size <= _PYTHON_BYTES
    except OSError:
        return False


def _builder(here: Path) -> str | None:
    """Return the only module in `here` that defines `build_model` and runs no other code; None if there is not one."""
    builders = [name for name in _python_files(here) if _is_safe_builder(here / name)]
    return builders[0].removesuffix(".py") if len(builders) == 1 and builders[0][:-3].isidentifier() else None


def _is_safe_builder(path: Path) -> bool:
    """Return whether a file defines `build_model`, and runs no other code when it is imported."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    harmless = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    rest = [node for node in body if not isinstance(node, harmless) and not _is_guard(node)]
    return not rest and any(isinstance(node, ast.FunctionDef) and node.name == _BUILDER for node in body)


def _is_guard(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring, or `if __name__ == "__main__"`."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
