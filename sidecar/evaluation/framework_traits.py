"""Describe a framework to the daemon and to the commands, which never import it.

A backend is a package with two modules. `traits` imports no framework and defines `TRAITS`; every part outside the
backend that depends on the framework reads it there. `backend` is imported by worker processes alone, imports the
framework, and defines `make() -> sidecar.evaluation.backend.Backend`. Standard library only.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.errors import SettingsError
from sidecar.evaluation.task import Task

OURS: Final = ("tensorflow", "torch", "python")
"""The frameworks whose backends are in `sidecar.evaluation.backends`."""

ENTRY_POINTS: Final = "sidecar.backends"
"""The group of entry points by which other distributions name their backends: `jax = "my_package.jax_backend"`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkTraits:
    """Hold what others must know of a framework.

    Example:
        `TRAITS = FrameworkTraits(name="my_package.jax_backend", detected_by=("jax", "flax"))`

    Attributes:
        name: The value of the setting `framework`: one of `OURS`, or the name of the backend's package.
        detected_by: Packages whose import by a task's file tells that the task needs this framework.
        detected_alone: A package that tells it by being installed alone, for tasks whose imports do not. None: none.
        loads_by_task: Whether a task that gives `Task(load=…)` needs this framework, whatever it imports.
        environment: Variables that a worker process gets unless the daemon's environment sets them.
        required: Variables that a worker process gets whatever the daemon's environment says; `worker_env` may change
            them.
        kept: Variables of `environment` that keep their value there, whatever the user sets: the name under which
            another value is passed on, by the name of the variable.
        options: Settings that only the backend reads; it gets them with each command.
        divides_models: Whether several processes of a worker can divide a model among them.
        listens: Whether worker processes of a group listen on ports.
        threads_by_environment: Whether the threads of its libraries are limited by variables such as OMP_NUM_THREADS,
            and not by functions of the framework.
        formats: Formats of checkpoints that its worker processes restore by themselves. None: those of all frameworks.
        template: The text of a task to fill in, for `sidecar init`: with the places `imported`, `builder` and `file`.
            None: there is none.
        require: Called with a task; raises `TaskError` if the task is written for another framework.
    """

    name: str
    detected_by: tuple[str, ...] = ()
    detected_alone: str | None = None
    loads_by_task: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    required: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    divides_models: bool = False
    listens: bool = True
    threads_by_environment: bool = True
    formats: tuple[str, ...] | None = None
    template: str | None = None
    require: Callable[[Task], None] = lambda _: None


def package_of(framework: str) -> str:
    """Return the package of a framework's backend. Raises `SettingsError` if the name is no package's."""
    if framework in OURS:
        return f"sidecar.evaluation.backends.{framework}"
    if "." not in framework:
        raise SettingsError(
            f"framework {framework!r} is unknown: use {', '.join(OURS)}, or the package of a backend of your own, "
            f"such as my_package.backend"
        )
    return framework


def traits_of(framework: str) -> FrameworkTraits:
    """Return the traits of a framework. Raises `SettingsError` if there is no such backend, or if it has none."""
    module = f"{package_of(framework)}.traits"
    try:
        found = getattr(importlib.import_module(module), "TRAITS", None)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"framework {framework!r}: there is no module {error.name!r}; install the backend for {module} into the "
            f"environment of sidecar, or name its folder in PYTHONPATH"
        ) from error
    if not isinstance(found, FrameworkTraits):
        raise SettingsError(f"framework {framework!r}: {module} must define TRAITS = FrameworkTraits(…)")
    return found
