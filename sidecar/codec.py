"""Convert records to strict JSON (without NaN), and back.

The reader ignores unknown fields, checks the type of each known field, and raises a `RecordError` that names the field.
Standard library only, because worker processes import this module under the user's interpreter.
"""

import contextlib
import dataclasses
import functools
import json
import sys
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union

from sidecar.errors import NewerSchemaError, RecordError
from sidecar.records import INLINED, SCHEMA

R = TypeVar("R")


def dumps(record: Any) -> bytes:
    """Return a record as strict JSON in one line."""
    text = json.dumps(record, default=fields_of, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")  # file names that are not UTF-8 contain \udc80 etc.


def fields_of(record: Any) -> dict[str, Any]:
    """Return the JSON fields of a record without copying their values, unlike `dataclasses.asdict`."""
    kind: type = type(record)
    values = {}
    for field in _fields(kind):
        value = getattr(record, field.name)
        values.update(fields_of(value) if field.inlined else {field.name: value})
    return values


def loads(cls: type[R], data: bytes) -> R:
    """Parse a record. Raises a `RecordError` that names the field which is missing or has the wrong type."""
    try:
        parsed = json.loads(data, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not a {cls.__name__} record: {error}") from error
    return from_json(cls, parsed)


def from_json(cls: type[R], parsed: Any) -> R:
    """Build a record from parsed JSON, and check the type of every field."""
    if isinstance(parsed, Mapping) and isinstance(schema := parsed.get("schema", SCHEMA), int) and schema > SCHEMA:
        raise NewerSchemaError(f"{cls.__name__} has schema {schema}, this version knows {SCHEMA}: update this daemon")
    value = _convert(cls, parsed, cls.__name__)
    return typing.cast("R", value)


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _convert(kind: Any, value: Any, where: str) -> Any:  # noqa: C901, PLR0911 - one return per kind reads best
    """Return the JSON `value` as the type `kind`: a record, a state, a number, a text, or tuples and the like of them.

    Raises `RecordError` if it does not match. `where`: the name of the field, for the message.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _convert_record(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        with contextlib.suppress(ValueError):
            return kind(value)
    elif origin is Literal:
        if value in arguments:
            return value
    elif origin in (Union, types.UnionType):
        return _convert_union(arguments, value, where)
    elif origin is tuple and isinstance(value, list):
        return tuple(_convert(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        return {sys.intern(key): _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    elif kind is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:  # 1e999 would be inf
        return float(value)
    elif kind is int and type(value) is int and abs(value) > sys.float_info.max:  # no gauge could show it
        pass
    elif kind is not float and isinstance(kind, type) and type(value) is kind:
        # A long journal repeats the same names; interning stores each of them only once.
        return sys.intern(str(value)) if kind is str else value
    raise RecordError(f"{where}: expected {getattr(kind, '__name__', kind)}, found {str(value)[:80]!r}")


def _convert_union(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    """Return `value` as the one type of a union that is not None, or None if the union allows it."""
    if value is None and type(None) in arguments:
        return None
    (kind,) = (argument for argument in arguments if argument is not type(None))
    return _convert(kind, value, where)


def _convert_record(cls: type, value: Any, where: str) -> Any:
    """Return the JSON object `value` as a record. Raises `RecordError`."""
    if not isinstance(value, dict):
        raise RecordError(f"{where}: expected an object, found {str(value)[:80]!r}")
    values = {}
    for field in _fields(cls):
        if field.inlined:
            values[field.name] = _convert_record(field.kind, value, where)
        elif field.name in value:
            values[field.name] = _convert(field.kind, value[field.name], f"{where}.{field.name}")
        elif field.required:
            raise RecordError(f"{where}.{field.name}: missing")
    return cls(**values)


class _Field(NamedTuple):
    """Describe one field of a record."""

    name: str
    kind: Any
    required: bool
    inlined: bool


@functools.cache
def _fields(cls: type) -> tuple[_Field, ...]:
    """Return the fields of a record. They are cached because resolving the types costs more than reading a record."""
    kinds, hints = typing.get_type_hints(cls), typing.get_type_hints(cls, include_extras=True)
    return tuple(
        _Field(
            name=item.name,
            kind=kinds[item.name],
            required=item.default is item.default_factory is dataclasses.MISSING,
            inlined=_is_inlined(hints[item.name]),
        )
        for item in dataclasses.fields(cls)
    )


def _is_inlined(hint: Any) -> bool:
    return typing.get_origin(hint) is Annotated and INLINED in typing.get_args(hint)[1:]
