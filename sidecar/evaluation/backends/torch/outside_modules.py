"""Find modules with parameters that a task uses next to its model: no checkpoint restores them.

An embedding that the step takes from a global variable, or a learned criterion that a loss closes over, would have the
values that it was made with. These are random as a rule, and alike on all workers, which start with one seed.
"""

import dis
import functools
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from inspect import getattr_static
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sidecar.evaluation.backends.torch.tensors import bits_of
from sidecar.evaluation.data.digest import digest_of
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.task import Task
from sidecar.system.plain_text import listed

_DEEPEST: Final = 4
_MOST_OBJECTS: Final = 2000
_MOST_VALUES: Final = 64  # of a list or dict that are looked into
_OF_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def require_restored(task: Task, model: nn.Module) -> None:
    """Raise `EvaluationError` if the step or the loss uses parameters that are not those of the model.

    Parameters without gradients count as constants: those of a fixed teacher, for example.
    """
    own = {id(parameter) for parameter in model.parameters()}
    for argument in ("step", "loss", "predictions"):
        for name, module in modules_in(getattr(task, argument)).items():
            learned = [one for one in module.parameters() if one.requires_grad]
            if learned and not any(id(parameter) in own for parameter in module.parameters()):
                raise task_error(
                    f"Task({argument}=…) uses {name}, a {type(module).__name__} with parameters that are not part of "
                    f"the model, so no checkpoint restores them: let build_model return both, such as "
                    f"nn.ModuleDict({{'model': …, '{name.rpartition('.')[2]}': …}}), and let Task(step=…) use these; "
                    f"or, if the values are right as they are, write {name}.requires_grad_(False)"
                )


def require_repeated(metrics: Sequence[Any], again: Sequence[Any]) -> None:
    """Raise `EvaluationError` if a metric has a module with other values when the task makes it again."""
    for one, other in zip(metrics, again, strict=True):
        values, others = _values_in(one), _values_in(other)
        if names := [name for name, value in values.items() if others.get(name, value) != value]:
            metric = getattr(one, "name", None) or type(one).__name__
            raise task_error(
                f"metric {metric!r} holds random numbers, in {listed(names)}: "
                f"Task(metrics=…) makes other ones each time. Give it the weights that it should have, such as "
                f"net.load_state_dict(torch.load(path)), or call torch.manual_seed(0) before it is made"
            )


def modules_in(root: Any) -> dict[str, nn.Module]:
    """Return the modules with parameters that a function or an object leads to, by the names of variables."""
    found: dict[str, nn.Module] = {}
    waiting, seen = [("", root, 0)], set[int]()
    for place, value, depth in waiting:  # it grows
        if id(value) in seen or len(seen) >= _MOST_OBJECTS:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module) and any(True for _ in value.parameters()):
            found[place or type(value).__name__] = value
        elif depth < _DEEPEST:
            waiting += [(name, part, depth + 1) for name, part in _parts_of(place, value)]
    return found


def _values_in(metric: Any) -> dict[str, str]:
    """Return digests of the values of all modules that a metric leads to, by name."""
    return {
        f"{place}.{name}": digest_of([bits_of(value)]).hex()
        for place, module in modules_in(metric).items()
        for name, value in (*module.named_parameters(), *module.named_buffers())
        if not is_lazy(value)
    }


def _parts_of(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a user's object holds or refers to, each with its own place."""
    if isinstance(value, FunctionType):
        if not value.__code__.co_filename.startswith(_OF_LIBRARIES):
            yield from _used_by(value)
    elif isinstance(value, MethodType):
        yield from ((place, value.__self__), (place, value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((place, part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, Mapping):
        yield from ((f"{place}[{key!r}]", part) for key, part in islice(value.items(), _MOST_VALUES))
    elif isinstance(value, list | tuple):
        yield from ((f"{place}[{number}]", part) for number, part in enumerate(value[:_MOST_VALUES]))
    elif not isinstance(value, str | bytes | int | float | torch.Tensor | ModuleType | type):
        attributes = getattr(value, "__dict__", {})
        yield from ((f"{place}.{name}" if place else name, part) for name, part in attributes.items())
        if isinstance(called := getattr_static(type(value), "__call__", None), FunctionType):
            yield place, called


def _used_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables outside of a function that it reads."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is empty
            continue
    for name in dict.fromkeys(_globals_in(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    yield from zip(reversed(arguments), reversed(function.__defaults__ or ()), strict=False)


def _globals_in(code: CodeType) -> Iterator[str]:
    """Yield the names of the global variables that a function reads, also in functions within it."""
    yield from (str(each.argval) for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_in(constant)
