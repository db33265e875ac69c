"""Find mistakes in the name of a task by reading its file: that is quick, while importing a framework takes seconds.

The worker process, which imports the task, finds all other mistakes.
"""

import ast
import contextlib
import difflib
import importlib.util
import sys
from pathlib import Path
from typing import Final

from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.errors import StorageError, TaskError
from sidecar.settings import Settings

_MAKES_NAMES: Final = {"exec", "eval", "globals", "vars", "setattr", "__getattr__", "modules", "__dict__"}
"""Identifiers by which code can define names that its text does not show."""


def find_typo(settings: Settings, search_path: Path) -> None:
    """Raise `TaskError` if the settings' task cannot be there; without a task, do nothing."""
    if settings.task is not None:
        same = settings.worker_python == Path(sys.executable) and "PYTHONPATH" not in settings.worker_env
        check_task(settings.task, search_path, same_python=same)


def file_of_task(reference: str, search_path: Path) -> Path | None:
    """Return the file that defines a task; None if the task is a module that is not below the search path."""
    location = reference.rpartition(":")[0]
    if location.endswith(".py"):
        return search_path / Path(location).expanduser()
    return module_file(location, search_path)


def check_before_import(settings: Settings) -> None:
    """Find a typo in the task of the settings. If the storage is silent, the worker process will report it."""
    storage_timeout = StorageTimeout(settings.storage_timeout_seconds, "the task's file")
    with contextlib.suppress(StorageError):
        storage_timeout.call(lambda: find_typo(settings, Path.cwd()))


def check_task(reference: str, search_path: Path, *, same_python: bool) -> None:
    """Raise `TaskError` if the task cannot be there: no file, no such name in it, or text that is not Python.

    `reference`: `path/file.py:attr` or `module:attr`, as in the settings. `search_path`: where relative paths and
    modules begin. `same_python`: whether workers run this interpreter: another one may know other syntax and other
    packages.
    """
    location, _, attribute = reference.rpartition(":")
    if location.endswith(".py"):
        path = search_path / Path(location).expanduser()
        if not path.is_file():
            raise TaskError(f"task {reference!r}: there is no file {path}{_similar_file(path)}")
    else:
        found = module_file(location, search_path)
        if found is None and same_python and not is_installed(location.partition(".")[0]):
            top = location.partition(".")[0]
            raise TaskError(
                f"task {reference!r}: there is no module {top!r} in {search_path} or installed for {sys.executable}"
            )
        if found is None:
            return
        path = found
    _check_text(reference, path, attribute, same_python=same_python)


def _check_text(reference: str, path: Path, attribute: str, *, same_python: bool) -> None:
    """Raise `TaskError` if a task's file has a syntax error, or lacks the attribute."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        if same_python:
            where = f"{path}, line {error.lineno}" if error.lineno else str(path)
            shown = f": {error.text.strip()}" if error.text else ""
            raise TaskError(f"task {reference!r}: {where}: {error.msg}{shown}") from None
        return
    except (OSError, ValueError, RecursionError, MemoryError):
        return  # the worker process will report what is wrong
    bound, used = _names(tree)
    if attribute in bound or "*" in bound or used & _MAKES_NAMES:
        return
    close = difflib.get_close_matches(attribute, bound, n=1)
    hint = f"it defines {', '.join(sorted(_public(tree))) or 'nothing'}"
    hint += f"; did you mean {close[0]}?" if close else ""
    raise TaskError(f"task {reference!r}: {path} has no {attribute!r}; {hint}")


def _names(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names that the code binds anywhere (`*`: any), and all identifiers in it."""
    bound: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
                used.add(name)
            case ast.alias(name=name, asname=asname):
                bound.add(asname or name.partition(".")[0])
            case ast.Name(id=name, ctx=context):
                used.add(name)
                if isinstance(context, ast.Store):
                    bound.add(name)
            case ast.Attribute(attr=name):
                used.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
            case ast.Global(names=names):
                bound.update(names)
    return bound, used


def _public(tree: ast.Module) -> set[str]:
    """Return the public names that a module defines at its top level."""
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in tree.body if isinstance(node, defined)}
    names |= {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {name for name in names if not name.startswith("_")}


def module_file(name: str, search_path: Path) -> Path | None:
    """Return the file of a module below the search path; None if there is none."""
    base = search_path.joinpath(*name.split("."))
    return next((path for path in (base / "__init__.py", base.with_name(f"{base.name}.py")) if path.is_file()), None)


def is_installed(top: str) -> bool:
    """Return whether this interpreter can find a top-level module. Finding one imports nothing."""
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return True  # the module exists, but its spec cannot be read


def _similar_file(path: Path) -> str:
    """Return a hint for a missing file: a similar name, or that the directory is missing."""
    try:
        names = [file.name for file in path.parent.iterdir() if file.suffix == ".py"]
    except OSError:
        return f": there is no directory {path.parent}" if not path.parent.is_dir() else ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""
