"""Find out which framework a task needs, for `framework = "auto"`, by reading its file. Nothing is imported.

The names that the task's file imports decide, and those that modules next to it import if it imports no framework
itself. A task that gives `Task(load=…)` loads its models itself, whatever it imports.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.commands.task_file import file_of_task, is_installed, module_file
from sidecar.errors import SettingsError
from sidecar.settings import Settings

Framework = Literal["tensorflow", "torch", "python"]

_BY_PACKAGE: Final[dict[str, Framework]] = {
    **dict.fromkeys(("tensorflow", "keras", "tf_keras", "keras_hub", "keras_cv", "keras_nlp"), "tensorflow"),
    **dict.fromkeys(
        (
            *("torch", "torchvision", "torchaudio", "torchtext", "torchmetrics", "torchtitan", "torchtune"),
            *("lightning", "pytorch_lightning", "transformers", "accelerate", "timm", "peft", "diffusers"),
        ),
        "torch",
    ),
}
_WITH_MODELS: Final[dict[str, Framework]] = {"tensorflow": "tensorflow", "torch": "torch"}
_MOST_FILES: Final = 100


@dataclass(slots=True)
class _Imports:
    """The packages of frameworks that files import, by framework, and whether a task loads its models itself."""

    packages: dict[Framework, set[str]] = field(default_factory=dict)
    loads: bool = False

    def decide(self, *, of_task: bool) -> Framework | None:
        """Return the framework if there is evidence for exactly one.

        `of_task`: these are the imports of the task's own file, where a framework may be what `load` loads with.
        """
        if self.loads and (of_task or not self.packages):
            return "python"
        return next(iter(self.packages)) if len(self.packages) == 1 and not self.loads else None


def framework_of_files(paths: Iterable[Path]) -> Framework | None:
    """Return the framework that Python files import, if all of them together import exactly one."""
    imports = _Imports()
    for path in paths:
        for name in _names(path, imports):
            if framework := _BY_PACKAGE.get(name.partition(".")[0]):
                imports.packages.setdefault(framework, set()).add(name)
    return next(iter(imports.packages)) if len(imports.packages) == 1 else None


def with_framework(settings: Settings, search_path: Path) -> Settings:
    """Return the settings with the framework that the task needs instead of `auto`.

    Raises `SettingsError` if the task's imports do not tell, `StorageError` if its file cannot be read in time.
    """
    if settings.framework != "auto" or settings.task is None:
        return settings
    limit = StorageTimeout(settings.storage_timeout_seconds, "the task's file")
    return settings.model_copy(update={"framework": limit.call(lambda: _framework_of(settings, search_path))})


def _framework_of(settings: Settings, search_path: Path) -> Framework:
    assert settings.task is not None
    found, distance = _Imports(), 0
    path = file_of_task(settings.task, search_path)
    if path is not None:
        for distance, imports in enumerate(_by_distance(path, search_path)):  # noqa: B007 - used below
            found = imports
            if found.packages or found.loads:
                break
    if (decided := found.decide(of_task=distance == 0)) is not None:
        return decided
    names = " and ".join(sorted(set().union(*found.packages.values()))) or "no framework"
    if not found.packages:
        installed = [framework for package, framework in _WITH_MODELS.items() if is_installed(package)]
        if len(installed) == 1:
            return installed[0]
    raise SettingsError(
        f"task {settings.task!r} imports {names}, so it is unknown what evaluates it: set framework in "
        f"sidecar.toml, or SIDECAR_FRAMEWORK, to tensorflow, torch or python"
    )


def _by_distance(path: Path, search_path: Path) -> Iterator[_Imports]:
    """Yield what a file imports, then what the modules next to it import, then what these import, and so on."""
    waiting, seen = [path], {path}
    while waiting:
        imports, following = _Imports(), list[Path]()
        for file in waiting:
            for name in _names(file, imports):
                if framework := _BY_PACKAGE.get(name.partition(".")[0]):
                    imports.packages.setdefault(framework, set()).add(name.partition(".")[0])
                    continue
                for folder in (file.parent, search_path):
                    local = module_file(name, folder)
                    if local is not None and local not in seen and len(seen) < _MOST_FILES:
                        seen.add(local)
                        following.append(local)
        yield imports
        waiting = following


def _names(path: Path, imports: _Imports) -> list[str]:
    """Return the modules that a file imports; none if it cannot be read. The worker process will report that."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names = list[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names += [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(module), names=aliases):
                names += [module, *(f"{module}.{alias.name}" for alias in aliases)]
            case ast.ImportFrom(module=None, names=aliases):
                names += [alias.name for alias in aliases]
            case ast.Call(func=ast.Name(id="Task") | ast.Attribute(attr="Task"), keywords=keywords):
                imports.loads |= any(keyword.arg == "load" for keyword in keywords)
    return names
