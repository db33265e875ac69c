"""Find the objects that a user's function or object uses: what it holds, closes over, or reads as global variables.

Functions of installed packages are not looked into. Imports no framework.
"""

import dis
import functools
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from inspect import getattr_static
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

_DEEPEST: Final = 4
_MOST_OBJECTS: Final = 2000
_MOST_VALUES: Final = 64  # of a list or dict that are looked into
OF_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
"""The folders of installed packages and of Python's own."""


def used_by(
    root: Any, is_wanted: Callable[[Any], bool], is_opaque: Callable[[Any], bool] = lambda _: False
) -> dict[str, Any]:
    """Return the wanted objects to which few steps lead, by the names of variables and attributes.

    Objects that are wanted or opaque are not looked into.
    """
    found: dict[str, Any] = {}
    waiting, seen = [("", root, 0)], set[int]()
    for place, value, depth in waiting:  # it grows
        if id(value) in seen or len(seen) >= _MOST_OBJECTS:
            continue
        seen.add(id(value))
        if is_wanted(value):
            found[place or type(value).__name__] = value
        elif depth < _DEEPEST and not is_opaque(value):
            waiting += [(name, part, depth + 1) for name, part in _parts_of(place, value)]
    return found


def _parts_of(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a user's object holds or refers to, each with its own place."""
    if isinstance(value, FunctionType):
        if not value.__code__.co_filename.startswith(OF_LIBRARIES):
            yield from _used_by(value)
    elif isinstance(value, MethodType):
        yield from ((place, value.__self__), (place, value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((place, part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, Mapping):
        yield from ((f"{place}[{key!r}]", part) for key, part in islice(value.items(), _MOST_VALUES))
    elif isinstance(value, list | tuple):
        yield from ((f"{place}[{number}]", part) for number, part in enumerate(value[:_MOST_VALUES]))
    elif not isinstance(value, str | bytes | int | float | ModuleType | type):
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
