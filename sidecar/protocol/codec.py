"""Convert records to strict JSON (without NaN), and back.

The reader ignores unknown fields, checks the type and the size of each known field, and raises a `RecordError` that
names the field. `record_limits` has the limits. Standard library only, because worker processes import this module
under the user's interpreter.
"""

import contextlib
import dataclasses
import functools
import json
import sys
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union

from sidecar.errors import NewerSchemaError, RecordError, VoidRecordError
from sidecar.protocol.record_limits import SMALL, AtMost, RecordLimits, excess
from sidecar.protocol.records import INLINED, SCHEMA, SPARSE, UNSAVED

R = TypeVar("R")

_Converter = Callable[[Any], Any]


def dumps(record: Any) -> bytes:
    """Return a record as strict JSON in one line. Texts that may be cut are cut to their limit."""
    text = json.dumps(record, default=fields_of, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")  # file names that are not UTF-8 contain \udc80 etc.


def fields_of(record: Any) -> dict[str, Any]:
    """Return the JSON fields of a record without copying their values, unlike `dataclasses.asdict`."""
    kind: type = type(record)
    values = {}
    for field in _fields(kind):
        value = getattr(record, field.name)
        if field.inlined:
            values.update(fields_of(value))
        elif not field.sparse or value not in (None, {}, ()):
            values[field.name] = value if field.cut is None or value is None else field.cut(value)
    return values


def limits_of(cls: type) -> RecordLimits:
    """Return the limits of a kind of record."""
    limits = getattr(cls, "LIMITS", SMALL)
    assert isinstance(limits, RecordLimits)
    return limits


def _kind_of(cls: type) -> str:
    """Return what messages call a kind of record: the name of its class, or of the one whose other form it is."""
    return getattr(cls, "KIND", cls.__name__)


def loads(cls: type[R], data: bytes) -> R:
    """Parse a record. Raises a `RecordError` that names the field which is missing or has the wrong type.

    Raises a `VoidRecordError` for a record that is too large, or has a part that is.
    """
    limits = limits_of(cls)
    if (why := excess(data, limits)) is not None:
        raise VoidRecordError(f"the {_kind_of(cls)} record {why}")
    try:
        parsed = _DECODER.decode(data.decode(errors="surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not a {_kind_of(cls)} record: {error}") from error
    return _convert(cls, parsed, limits)


def from_json(cls: type[R], parsed: Any) -> R:
    """Build a record from parsed JSON, and check the type of every field, but no limit."""
    return _convert(cls, parsed, None)


def _convert(cls: type[R], parsed: Any, limits: RecordLimits | None) -> R:
    """Build a record from parsed JSON. Raises a `RecordError` with the place of the error."""
    known = getattr(cls, "NEWEST_SCHEMA", SCHEMA)
    if isinstance(parsed, Mapping) and isinstance(schema := parsed.get("schema", SCHEMA), int) and schema > known:
        raise NewerSchemaError(f"{_kind_of(cls)} has schema {schema}, this version knows {known}: update this daemon")
    try:
        return typing.cast("R", _record(typing.cast("Hashable", cls), limits)(parsed))
    except _UnfitError as error:
        sentence = f"{_kind_of(cls)}{error.place}: {error.sentence}"
        if error.void:
            raise VoidRecordError(sentence, *(parsed.get(name) for name in ("run", "plan"))) from None
        raise RecordError(sentence) from None


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_LONGEST_INTERNED: Final = 64  # characters: the digest of a task

_DECODER: Final = json.JSONDecoder(parse_constant=_reject_constant)


class _UnfitError(Exception):
    """A value does not fit its field. `void`: it has the right type, but breaks a limit."""

    def __init__(self, sentence: str, place: str = "", *, void: bool = False) -> None:
        super().__init__(sentence)
        self.sentence, self.place, self.void = sentence, place, void

    def within(self, place: str) -> "_UnfitError":
        """Put the name of what holds the value in front of its place."""
        self.place = f"{place}{self.place}"
        return self


def _mismatch(kind: Any, value: Any) -> _UnfitError:
    return _UnfitError(f"expected {getattr(kind, '__name__', kind)}, found {str(value)[:80]!r}")


@functools.cache
def _converter(kind: Any, limits: RecordLimits | None, most: AtMost | None = None) -> _Converter:  # noqa: C901, PLR0911 - one return per kind reads best
    """Return the function that turns a JSON value into the type `kind`, and raises `_UnfitError` if it does not match.

    These are records, states, numbers, texts, and tuples and the like of them. `most`: the limit of the field.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin is Annotated:
        own = next((mark for mark in arguments[1:] if isinstance(mark, AtMost)), most)
        return _converter(arguments[0], limits, own)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, limits)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _one_of(kind, kind)
    if origin is Literal:
        return _one_of(kind, {value: value for value in arguments}.__getitem__)
    if origin in (Union, types.UnionType):
        return _optional(kind, limits, most)
    if origin is tuple:
        return _items(_converter(arguments[0], limits), kind, limits, most)
    if origin is dict:
        return _mapping(_converter(arguments[1], limits), kind, limits, most)
    if kind is str:
        return _text(limits, most)
    if kind in (int, float):
        return _number(kind)
    return _plain(kind)


def _one_of(kind: Any, find: Callable[[Any], Any]) -> _Converter:
    def convert(value: Any) -> Any:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return find(value)
        raise _mismatch(kind, value)

    return convert


def _optional(kind: Any, limits: RecordLimits | None, most: AtMost | None) -> _Converter:
    """Return the function for the one type of a union that is not None, or for that type and None."""
    arguments = typing.get_args(kind)
    (present,) = (argument for argument in arguments if argument is not type(None))
    convert = _converter(present, limits, most)
    if type(None) not in arguments:
        return convert
    return lambda value: None if value is None else convert(value)


def _reject_long(value: Any, most: int, what: str) -> None:
    if len(value) > most:
        raise _UnfitError(f"has {len(value)} {what}, more than {most}", void=True)


def _items(item: _Converter, kind: Any, limits: RecordLimits | None, own: AtMost | None) -> _Converter:
    most = None if limits is None else limits.items if own is None else own.count

    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _mismatch(kind, value)
        if most is not None:
            _reject_long(value, most, "items")
        found: list[Any] = []
        try:
            for each in value:
                found.append(item(each))  # noqa: PERF401 - the place of an error is the number of those before it
        except _UnfitError as error:
            raise error.within(f"[{len(found)}]") from None
        return tuple(found)

    return convert


def _mapping(item: _Converter, kind: Any, limits: RecordLimits | None, own: AtMost | None) -> _Converter:
    most = None if limits is None else limits.items if own is None else own.count

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _mismatch(kind, value)
        if most is not None:
            _reject_long(value, most, "items")
        found: dict[str, Any] = {}
        for key, each in value.items():
            try:
                if limits is not None:
                    _reject_long(key, limits.name, "characters in its name")
                found[sys.intern(key)] = item(each)
            except _UnfitError as error:
                raise error.within(f".{key:.80}") from None
        return found

    return convert


def _text(limits: RecordLimits | None, own: AtMost | None) -> _Converter:
    most = None if limits is None else limits.text if own is None else own.count
    # Each interned text takes a place in a table of Python, which grows by a megabyte before it uses places again. So a
    # journal's texts are not interned: every record has other nonces, times and names.
    shared = limits is not None and limits.shared

    def convert(value: Any) -> str:
        if type(value) is not str:
            raise _mismatch(str, value)
        if most is not None:
            _reject_long(value, most, "characters")
        return sys.intern(value) if shared and len(value) <= _LONGEST_INTERNED else value

    return convert


def _number(kind: type[int] | type[float]) -> _Converter:
    """Return the function for numbers. A whole number stands for a float."""
    allowed = (int,) if kind is int else (int, float)
    largest = sys.float_info.max  # 1e999 would be inf, and no gauge could show a larger whole number

    def convert(value: Any) -> float:
        if type(value) not in allowed:
            raise _mismatch(kind, value)
        if not -largest <= value <= largest:
            raise _UnfitError(f"expected {kind.__name__}, found a number that no float can hold", void=True)
        return kind(value)

    return convert


def _plain(kind: Any) -> _Converter:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise _mismatch(kind, value)
        return value

    return convert


@functools.cache
def _record(cls: type, limits: RecordLimits | None) -> _Converter:
    """Return the function that turns a JSON object into a record."""
    parts = [(field, _converter(field.kind, limits)) for field in _fields(cls)]

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _UnfitError(f"expected an object, found {str(value)[:80]!r}")
        values = {}
        for (name, _, required, inlined, _, _), part in parts:
            if inlined:
                values[name] = part(value)
            elif name in value:
                try:
                    values[name] = part(value[name])
                except _UnfitError as error:
                    raise error.within(f".{name}") from None
            elif required:
                raise _UnfitError("missing", f".{name}")
        return cls(**values)

    return convert


class _Field(NamedTuple):
    """Describe one field of a record.

    `cut`: how a writer shortens its value. `sparse`: it is not written if it is None or empty.
    """

    name: str
    kind: Any
    required: bool
    inlined: bool
    cut: Callable[[Any], Any] | None
    sparse: bool


@functools.cache
def _fields(cls: type) -> tuple[_Field, ...]:
    """Return the fields of a record in its file. Resolving their types costs more than reading a record."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(
        _Field(
            name=item.name,
            kind=hints[item.name],
            required=item.default is item.default_factory is dataclasses.MISSING,
            inlined=_is_marked(hints[item.name], INLINED),
            cut=_cutter(hints[item.name]),
            sparse=_is_marked(hints[item.name], SPARSE),
        )
        for item in dataclasses.fields(cls)
        if not _is_marked(hints[item.name], UNSAVED)
    )


def _is_marked(hint: Any, mark: str) -> bool:
    return typing.get_origin(hint) is Annotated and mark in typing.get_args(hint)[1:]


def _cutter(hint: Any) -> Callable[[Any], Any] | None:
    """Return how a value is cut that is longer than its limit; None if it is not cut."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated and (limit := next((mark for mark in arguments[1:] if isinstance(mark, AtMost)), None)):
        return _cutter_to(limit.count, arguments[0]) if limit.cut else _cutter(arguments[0])
    if origin in (Union, types.UnionType):
        return next((cut for argument in arguments if (cut := _cutter(argument)) is not None), None)
    return None


def _cutter_to(most: int, hint: Any) -> Callable[[Any], Any]:
    if typing.get_origin(hint) is not tuple:
        return functools.partial(cut_text, most=most)
    cut_item = _cutter(typing.get_args(hint)[0])

    def cut(values: tuple[str, ...]) -> tuple[str, ...]:
        kept = values if len(values) <= most else (*values[: most - 1], f"… and {len(values) - most + 1} more")
        return kept if cut_item is None else tuple(map(cut_item, kept))

    return cut


def cut_text(text: str, most: int) -> str:
    """Return a text of at most `most` characters: its begin and its end, and how much was cut between them."""
    if len(text) <= most:
        return text
    said = f" … ({len(text) - most} characters and more were cut) … "
    begin = max(0, most - len(said)) // 2
    end = max(0, most - len(said) - begin)
    return f"{text[:begin]}{said}{text[len(text) - end :]}"[:most]
