"""Find the log events of a package in its source: the calls that write them, with their levels and fields.

The source is not imported or run. A field is found if its name is in the source: as a keyword of the call, or as the
key of a mapping that is passed on, created in the same function or returned by a function of the same module.
"""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LEVELS: Final = {"info": "info", "warning": "warning", "error": "error", "exception": "error"}
"""Methods of a log, with the level of the line that each writes."""

_NAME: Final = re.compile(r"[a-z]+(_[a-z]+)*")


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One log event, with its levels and the fields that the calls name."""

    name: str
    levels: tuple[str, ...]
    fields: tuple[str, ...]


@functools.cache
def log_events(package: Path) -> dict[str, LogEvent]:
    """Return every event that the modules below a folder log, by name."""
    events: dict[str, LogEvent] = {}
    for path in sorted(package.rglob("*.py")):
        for event in _Module(ast.parse(path.read_text(encoding="utf-8"))).events():
            before = events.get(event.name, event)
            levels, fields = (*before.levels, *event.levels), (*before.fields, *event.fields)
            events[event.name] = LogEvent(event.name, tuple(dict.fromkeys(levels)), tuple(dict.fromkeys(fields)))
    return events


class _Module:
    """Find the log calls in the functions of one module."""

    def __init__(self, module: ast.Module) -> None:
        self._all = [each for each in ast.walk(module) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        self._functions = {each.name: each for each in self._all}

    def events(self) -> Iterator[LogEvent]:
        """Yield an event for each call of a log whose first argument is a name."""
        for function in self._all:
            for node in ast.walk(function):
                match node:
                    case ast.Call(func=called, args=[ast.Constant(value=str(name)), *_]) if _NAME.fullmatch(name):
                        levels, more = self._log(called, function)
                        if levels:
                            yield LogEvent(name, levels, (*more, *self._keywords(node, function)))

    def _log(self, called: ast.expr, function: ast.AST) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the levels of a log call, none for any other call, and the fields that the called function adds."""
        match called:
            case ast.Attribute(attr=level, value=ast.Name(id="log" | "_log") | ast.Attribute(attr="log")):
                return _levels([level]), ()
            case ast.Name(id=name):  # a local variable that is one of two methods of the log
                values = (each for value in _assigned(name, function) for each in ast.walk(value))
                return _levels([each.attr for each in values if isinstance(each, ast.Attribute)]), ()
            case ast.Attribute(attr=name, value=ast.Name(id="self")) if name in self._functions:
                for node in ast.walk(self._functions[name]):
                    match node:  # a method that passes the name on
                        case ast.Call(func=ast.Attribute(attr=level), args=[ast.Name(id="event")]):
                            return _levels([level]), self._keywords(node, self._functions[name])
        return (), ()

    def _keywords(self, call: ast.Call, function: ast.AST) -> tuple[str, ...]:
        names: list[str] = []
        for each in call.keywords:
            names += self._keys(each.value, function) if each.arg is None else [each.arg]
        return tuple(names)

    def _keys(self, mapping: ast.expr, function: ast.AST) -> Iterator[str]:
        """Yield the keys of a mapping that is passed on, if they are in the source."""
        values = [mapping]
        match mapping:
            case ast.Name(id=name):
                values = list(_assigned(name, function))
        for node in (node for value in values for node in ast.walk(value)):
            match node:
                case ast.Dict(keys=keys):
                    yield from (str(key.value) for key in keys if isinstance(key, ast.Constant))
                case ast.DictComp(key=ast.JoinedStr() as key):
                    yield ast.unparse(key)[2:-1]
                case ast.Call(func=ast.Name(id=name)) if name in self._functions:
                    for each in ast.walk(self._functions[name]):
                        if isinstance(each, ast.Return) and each.value is not None:
                            yield from self._keys(each.value, self._functions[name])


def _levels(names: list[str]) -> tuple[str, ...]:
    return tuple(_LEVELS[each] for each in names if each in _LEVELS)


def _assigned(name: str, function: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                yield value
