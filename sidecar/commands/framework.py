"""Find out which framework a task needs, for `framework = "auto"`, and what follows from it for the settings.

The task's file is read, and not imported; of a framework only its traits are imported.

The names that the task's file imports decide, and those that modules next to it import if it imports no framework
itself. A task that gives `Task(load=…)` loads its models itself, whatever it imports, unless a backend from outside is
for such tasks.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.commands.task_file import file_of_task, is_installed, module_file
from sidecar.errors import SettingsError
from sidecar.evaluation.framework_traits import ENTRY_POINTS, OURS, FrameworkTraits, package_of, traits_of
from sidecar.protocol.messages import BackendOptions
from sidecar.settings import Settings

_MOST_FILES: Final = 100


@dataclass(slots=True)
class _Imports:
    """Hold the packages of frameworks that files import, by framework, and whether a task gives `Task(load=…)`."""

    packages: dict[str, set[str]] = field(default_factory=dict)
    gives_load: bool = False

    def decide(self, *, of_task: bool) -> str | None:
        """Return the framework if there is evidence for exactly one.

        `of_task`: these are the imports of the task's own file. If the file gives `Task(load=…)`, a framework that it
        imports serves `load`, and does not evaluate.
        """
        if self.gives_load and (of_task or not self.packages):
            by_task = [name for name in self.packages if traits_of(name).loads_by_task]
            return by_task[0] if len(by_task) == 1 else next(name for name in OURS if traits_of(name).loads_by_task)
        return next(iter(self.packages)) if len(self.packages) == 1 and not self.gives_load else None


def framework_of_files(paths: Iterable[Path]) -> str | None:
    """Return the framework that Python files import, if all of them together import exactly one."""
    imports = _Imports()
    by_package = _by_package(map(traits_of, OURS))
    for path in paths:
        for name in _names(path, imports):
            if package := _package(name, by_package):
                imports.packages.setdefault(by_package[package], set()).add(name)
    return next(iter(imports.packages)) if len(imports.packages) == 1 else None


def with_framework(
    settings: Settings, search_path: Path, *, is_installed: Callable[[str], bool] = is_installed
) -> Settings:
    """Return the settings with the framework that the task needs for `auto`, and with packages for names of backends.

    Raises `SettingsError` if the task's imports do not tell, or there is no such framework, `StorageError` if the
    task's file cannot be read in time.
    """
    if settings.framework != "auto":
        found = _installed(settings.framework)
        return settings if found == settings.framework else settings.model_copy(update={"framework": found})
    if settings.task is None:
        return settings
    limit = StorageTimeout(settings.storage_timeout_seconds, "the task's file")
    return settings.model_copy(
        update={"framework": limit.call(lambda: _framework_of(settings, search_path, is_installed))}
    )


def formats_looked_for(settings: Settings) -> tuple[str, ...]:
    """Return the formats to scan for: those of the settings, else those that the framework restores; empty: all."""
    if settings.formats or settings.framework == "auto":
        return settings.formats
    return traits_of(_installed(settings.framework)).formats or ()


def workers_listen(settings: Settings) -> bool:
    """Return whether worker processes listen on ports, or may do so."""
    return settings.framework == "auto" or traits_of(settings.framework).listens


def backend_options(settings: Settings) -> BackendOptions:
    """Return the settings of the framework's backend for messages to workers. All other parts pass them on unread."""
    return {name: getattr(settings, name) for name in traits_of(settings.framework).options}


def _installed(framework: str) -> str:
    """Return the package of a backend that another distribution names, or the name as it is. Raises `SettingsError`."""
    if framework in OURS or "." in framework:
        return framework
    named = {entry.name: entry.value for entry in entry_points(group=ENTRY_POINTS)}
    return named[framework] if framework in named else package_of(framework)


def _all_traits() -> list[FrameworkTraits]:
    """Return the traits of our frameworks, and of those whose backends other distributions name."""
    others = [entry.value for entry in entry_points(group=ENTRY_POINTS)]
    return [traits_of(name) for name in (*OURS, *others)]


def _by_package(known: Iterable[FrameworkTraits]) -> dict[str, str]:
    """Return the frameworks by the packages whose import tells that a task needs them."""
    return {package: traits.name for traits in known for package in traits.detected_by}


def _package(name: str, by_package: Mapping[str, str]) -> str | None:
    """Return the package of a framework that a module belongs to: the first part of its name, or the first two."""
    parts = name.split(".")
    return next((package for package in (parts[0], ".".join(parts[:2])) if package in by_package), None)


def _framework_of(settings: Settings, search_path: Path, is_installed: Callable[[str], bool]) -> str:
    """Return the framework by the imports nearest to the task, or the only one that is installed alone.

    Raises `SettingsError` if neither decides.
    """
    assert settings.task is not None
    known, found, distance = _all_traits(), _Imports(), 0
    by_package = _by_package(known)
    if package := _package(settings.task.rpartition(":")[0], by_package):
        return by_package[package]
    path = file_of_task(settings.task, search_path)
    if path is not None:
        for distance, imports in enumerate(_by_distance(path, search_path, by_package)):  # noqa: B007 - below
            found = imports
            if found.packages or found.gives_load:
                break
    if (decided := found.decide(of_task=distance == 0)) is not None:
        return decided
    names = " and ".join(sorted(set().union(*found.packages.values()))) or "no framework"
    if not found.packages:
        alone = [each.name for each in known if each.detected_alone is not None and is_installed(each.detected_alone)]
        if len(alone) == 1:
            return alone[0]
    raise SettingsError(
        f"task {settings.task!r} imports {names}, so it is unknown what evaluates it: set framework in "
        f"sidecar.toml, or SIDECAR_FRAMEWORK, to {', '.join(OURS[:-1])} or {OURS[-1]}"
    )


def _by_distance(path: Path, search_path: Path, by_package: Mapping[str, str]) -> Iterator[_Imports]:
    """Yield what a file imports, then what the modules next to it import, then what these import, and so on."""
    waiting, seen = [path], {path}
    while waiting:
        imports, following = _Imports(), list[Path]()
        for file in waiting:
            for name in _names(file, imports):
                if package := _package(name, by_package):
                    imports.packages.setdefault(by_package[package], set()).add(package)
                    continue
                for folder in (file.parent, search_path):
                    local = module_file(name, folder)
                    if local is not None and local not in seen and len(seen) < _MOST_FILES:
                        seen.add(local)
                        following.append(local)
        yield imports
        waiting = following


def _names(path: Path, imports: _Imports) -> list[str]:
    """Return the modules that a file imports, and note in `imports` whether it gives `Task(load=…)`.

    Return none if the file cannot be read: the worker process will report that.
    """
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
                imports.gives_load |= any(keyword.arg == "load" for keyword in keywords)
    return names
