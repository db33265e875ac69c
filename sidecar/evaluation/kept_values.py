"""Set back what a task's code keeps from call to call, so that each checkpoint meets it as in a new process.

A step may compute embeddings of class names once, and keep them in a global variable, a dict or `functools.cache`: the
next checkpoint would be measured with those of an earlier one. Evaluators note variables and containers once model and
data are there, before the model is called, and set them back before each checkpoint is restored. No value is looked
into, so a tensor, a Python number and an index of neighbours are alike. Models, functions, files and the like stay.
Imports no framework.
"""

import contextlib
import functools
import gc
import operator
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields
from itertools import islice, pairwise
from threading import local
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final

from sidecar.evaluation.task import EvalSet, Task
from sidecar.evaluation.used_objects import OF_LIBRARIES, used_by

_MOST_PLACES: Final = 20_000
_MOST_PARTS: Final = 4096  # of a container that are looked into: a larger one holds data
_MOST_SET_BACK: Final = 1_000_000  # parts of a container that is set back
_STAY: Final = ("assign_sub", "close", "acquire", "shutdown", "trainable_variables", "parameters")
"""What objects have that a task makes once, apart from those that can be called: variables, files, locks, pools."""

_Stays = Callable[[Any], bool]
_PLAIN: Final = frozenset({str, bytes, int, float, complex, bool, type(None)})  # have no parts
_MISSING: Final = object()
_CACHE: Final = type(functools.cache(len))
_WRAPPERS: Final = (MethodType, staticmethod, classmethod, property, _CACHE)


class KeptValues:
    """Hold what the code of a task keeps now, and may change later. `others`: its other functions and classes."""

    def __init__(self, task: Task, *others: Any) -> None:
        self._set_back: list[Callable[[_Stays], None]] = []
        described: list[Task | EvalSet] = [task, *task.sets().values()]
        parts = [getattr(each, part.name) for each in described for part in fields(each)]
        waiting: list[Any] = [*parts, *others]
        seen: dict[int, Any] = {}
        for value in waiting:  # it grows
            if id(value) not in seen and len(seen) < _MOST_PLACES and type(value) not in _PLAIN:
                seen[id(value)] = value
                waiting += self._note(value)

    def set_back(self, model: Any = None) -> None:
        """Give variables and containers the values that they had.

        `model`: one that is not used any more, so functions that lead to it, or to a part of it, do not stay.
        """
        parts = [] if model is None else [model, *used_by(model, _is_part).values()]
        stays = functools.partial(_stays, frozenset(map(id, parts)))
        for change in self._set_back:
            change(stays)

    def _note(self, value: Any) -> list[Any]:
        """Note a place, and return what it leads to."""
        if isinstance(value, CellType):
            return self._of_names(_Cell(value))
        if isinstance(value, type):
            return [*self._of_names(_Class(value)), *value.__bases__] if is_own(value.__module__) else []
        if isinstance(value, dict):
            return self._of_names(value) if len(value) <= _MOST_SET_BACK else []
        if isinstance(value, list | set | deque):
            if len(value) > _MOST_SET_BACK:
                return []
            self._set_back.append(functools.partial(_refill, value, before := list(value)))
            return before if len(before) <= _MOST_PARTS else []
        if isinstance(value, _CACHE):
            self._set_back.append(functools.partial(_clear, value, value.cache_info().misses))
        if type(value).__name__ == "MemorizedFunc" and value.ignore:  # of joblib.Memory; maybe the model is left out
            value.cache_validation_callback = lambda _: False
        return _parts_of(value)

    def _of_names(self, names: MutableMapping[Any, Any]) -> list[Any]:
        before = {name: value for name, value in names.items() if not _is_of_python(name)}
        self._set_back.append(functools.partial(_replace, names, before))
        return list(before.values()) if len(before) <= _MOST_PARTS else []


def _parts_of(value: Any) -> list[Any]:
    """Return what a function, a module or an object leads to, without anything that can change."""
    if isinstance(value, FunctionType) and is_own(value.__module__):
        defaults = value.__defaults__, value.__kwdefaults__
        return [value.__globals__, value.__dict__, *(value.__closure__ or ()), *defaults]
    if isinstance(value, ModuleType):
        return [vars(value)] if is_own(value.__name__) else []
    if isinstance(value, tuple):
        return list(value[:_MOST_PARTS])
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, _WRAPPERS):
        names = ("__self__", "__func__", "__wrapped__", "fget")
        return [getattr(value, name) for name in names if hasattr(value, name)]
    return [vars(value), type(value)] if _has_attributes(value) else []


def _replace(names: MutableMapping[Any, Any], before: Mapping[Any, Any], stays: _Stays) -> None:
    """Give names the values that they had, unless they have one that stays, and flags, which may be about that."""
    changed = {
        name: value
        for name, value in names.items()
        if value is not before.get(name, _MISSING) and not _is_of_python(name)
    }
    staying = {name for name, value in changed.items() if stays(value)}
    if staying:
        staying |= {name for name, value in changed.items() if isinstance(value, bool)}
    for name in changed.keys() - staying:
        if name in before:
            names[name] = before[name]
        else:
            del names[name]
    for name in before.keys() - names.keys():
        names[name] = before[name]


def _refill(parts: list[Any] | set[Any] | deque[Any], before: list[Any], stays: _Stays) -> None:
    """Give a container the parts that it had, unless it got one that stays."""
    if len(parts) == len(before) and all(map(operator.is_, parts, before)):
        return
    known = set(map(id, before))
    if not any(stays(part) for part in parts if id(part) not in known):
        parts.clear()
        (parts.update if isinstance(parts, set) else parts.extend)(before)


def _clear(cache: Any, misses: int, stays: _Stays) -> None:
    """Clear a cache that got results since then, unless one of them stays."""
    if cache.cache_info().misses != misses and not any(map(stays, _results_of(cache))):
        cache.cache_clear()


def _results_of(cache: Any) -> list[Any]:
    """Return the results in a cache of `functools`: source: CPython, `lru_cache_tp_traverse`."""
    held = gc.get_referents(cache)
    if cache.cache_parameters()["maxsize"] is None:
        return [result for each in held if type(each) is dict and each is not vars(cache) for result in each.values()]
    return [result for result, kind in pairwise(held) if getattr(kind, "__name__", "") == "_lru_list_elem"]


def _stays(of_model: frozenset[int], value: Any) -> bool:
    """Return whether a value is a model, a function, a file or the like, or holds one, other than of an old model."""
    stays = functools.partial(_stays, of_model)
    if isinstance(value, dict):
        return any(map(stays, islice(value.values(), _MOST_PARTS)))
    if isinstance(value, list | tuple | set | deque):
        return any(map(stays, islice(value, _MOST_PARTS)))
    if not callable(value) or isinstance(value, type):
        return isinstance(value, ModuleType | type) or any(hasattr(type(value), name) for name in _STAY)
    return not of_model or not used_by(value, lambda each: id(each) in of_model)


def _is_part(value: Any) -> bool:
    """Return whether part of a model is an array or the like, which no other model has."""
    return hasattr(type(value), "shape") and hasattr(type(value), "dtype")


def _is_of_python(name: Any) -> bool:
    return isinstance(name, str) and name.startswith("__")


def _has_attributes(value: Any) -> bool:
    """Return whether the code of a task may keep something in the attributes of an object, which is not data."""
    kind = type(value)
    if not hasattr(value, "__dict__") or any(hasattr(kind, name) for name in ("trainable_variables", "parameters")):
        return False
    if isinstance(value, Mapping | SimpleNamespace | Namespace | local):
        return True
    is_data = hasattr(kind, "__next__") or hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    return is_own(kind.__module__) and not is_data


def is_own(module: str | None) -> bool:
    """Return whether a module is the user's: neither installed, nor of this program."""
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    is_installed = file.startswith(OF_LIBRARIES) or "/site-packages/" in file or "/dist-packages/" in file
    return file.endswith(".py") and not is_installed and not f"{module}.".startswith("sidecar.")


@dataclass(frozen=True, slots=True)
class _Cell(MutableMapping[str, Any]):
    """Show a variable of an outer function as a mapping of at most one name."""

    cell: CellType

    def __getitem__(self, name: str) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self.cell.cell_contents = value

    def __delitem__(self, name: str) -> None:
        del self.cell.cell_contents

    def __iter__(self) -> Iterator[str]:
        with contextlib.suppress(KeyError):
            self[""]
            yield ""

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, slots=True)
class _Class(MutableMapping[str, Any]):
    """Show the attributes of a class as a mapping."""

    of: type

    def __getitem__(self, name: str) -> Any:
        return vars(self.of)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.of, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self.of, name)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self.of))

    def __len__(self) -> int:
        return sum(1 for _ in self)
