"""Build the plain values that training saves next to weights, without the classes that could do more than that.

`torch.load(weights_only=True)` builds tensors and containers. Files of real programs hold more: numbers and arrays of
numpy, `argparse.Namespace`, paths, dates, members of enums. Each of their names is given to torch with a substitute
that is defined here. A pickle may call a substitute with any arguments, and give any state to what it returns, so a
substitute

- checks all arguments, and builds a value of a size that the file itself has;
- imports, opens and calls nothing that the file names;
- is never a real class of numpy: `numpy.dtype` would let a file change the types of the whole process.

A class that is only named, such as `float` in a configuration, becomes a `Named`, which cannot be called.
"""

import argparse
import datetime as dt
import decimal
import enum
import re
import sys
import types
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from math import prod
from pathlib import PurePosixPath, PureWindowsPath
from pickle import UnpicklingError
from typing import Any, Final, Self

import numpy as np
import torch

_KIND: Final = re.compile(r"[<>|=]?[?biufcmMOSUV][0-9]{0,9}")
_UNIT: Final = re.compile(r"generic|Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as")
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,4000}(?:/[0-9]{1,4000})?")
_CONTAINERS: Final = (list, tuple, set, frozenset, dict)
_STATE: Final = 8  # values in the state of a type without metadata
_DIMENSIONS: Final = 64
_OPAQUE: Final = re.compile(
    r"numpy\.random\.(?:_pickle|_mt19937|_pcg64|_philox|_sfc64|bit_generator|_generator|mtrand)\..+"
)
"""Generators of random numbers. The states in them are of no use for an evaluation."""


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise UnpicklingError(f"it holds {what} with arguments that are never saved")


class Named:
    """Stand for a class or function that a file names and does not call."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Opaque:
    """Stand for an object whose content is not read."""

    def __init__(self, *content: Any) -> None:
        del content

    def __setstate__(self, state: Any) -> None:
        """Take a state, and forget it."""


class DType:
    """Hold a type of numpy as `dtype`."""

    def __init__(self, kind: Any = "f8", *options: Any) -> None:
        del options  # whether it is aligned, and a copy
        kind = kind.dtype.str if isinstance(kind, DType) else kind
        _require(isinstance(kind, str) and _KIND.fullmatch(kind) is not None, "numpy.dtype")
        self.dtype: np.dtype[Any] = np.dtype(kind)

    def __setstate__(self, state: Any) -> None:
        """Take byte order, fields and unit, as `numpy.dtype.__reduce__` returns them."""
        _require(isinstance(state, tuple) and len(state) >= _STATE, "numpy.dtype")
        _, order, subarray, names, fields, size, *_ = state
        if names is not None:
            _require(isinstance(names, tuple) and isinstance(fields, dict), "numpy.dtype")
            parts = [fields.get(name) for name in names]
            _require(all(isinstance(part, tuple) and isinstance(part[0], DType) for part in parts), "numpy.dtype")
            self.dtype = np.dtype(
                {
                    "names": list(names),
                    "formats": [part[0].dtype for part in parts],
                    "offsets": [part[1] for part in parts],
                    "itemsize": size,
                }
            )
        elif subarray is not None:
            base, shape = subarray
            _require(isinstance(base, DType), "numpy.dtype")
            self.dtype = np.dtype((base.dtype, _shape(shape)))
        elif self.dtype.kind in "mM":
            unit, count = state[-1][1][:2] if isinstance(state[-1], tuple) else (b"generic", 1)
            unit = unit.decode() if isinstance(unit, bytes) else unit
            _require(_UNIT.fullmatch(unit) is not None and type(count) is int, "numpy.dtype")
            if unit != "generic":
                self.dtype = np.dtype(f"{self.dtype.kind}8[{count}{unit}]")
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(order)


def _shape(shape: Any) -> tuple[int, ...]:
    shape = shape if isinstance(shape, tuple) else (shape,)
    _require(len(shape) <= _DIMENSIONS and all(type(size) is int and size >= 0 for size in shape), "an array")
    return shape


class Array(np.ndarray[Any, Any]):
    """An array of numpy that is filled by its state only."""

    def __new__(cls, *arguments: Any) -> Self:
        """Return an empty array, whatever the file asks for."""
        del arguments
        return super().__new__(cls, (0,), "b")

    def __setstate__(self, state: Any, /) -> None:
        """Take shape, type, order and content, if the content is as long as these say."""
        _require(isinstance(state, tuple) and len(state) >= 4, "an array")  # noqa: PLR2004 - with the version before
        shape, kind, is_fortran, content = state[-4:]
        _require(isinstance(kind, DType) and isinstance(content, bytes | list), "an array")
        shape, dtype = _shape(shape), kind.dtype
        if dtype.hasobject:
            _require(dtype.kind == "O" and isinstance(content, list) and len(content) == prod(shape), "an array")
        else:
            _require(isinstance(content, bytes) and len(content) == prod(shape) * dtype.itemsize, "an array")
        super().__setstate__((1, shape, dtype, bool(is_fortran), content))  # type: ignore[arg-type]


def _reconstruct(kind: Any = None, *options: Any) -> Array:
    del options
    _require(kind is Array, "an array")
    return Array()


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any = "C") -> Array:
    array = Array()
    array.__setstate__((1, shape, kind, order == "F", bytes(content) if type(content) in (bytes, bytearray) else None))
    return array


def _scalar(kind: Any, content: Any = b"") -> Any:
    """Return one number, text or record of numpy."""
    _require(isinstance(kind, DType), "a number of numpy")
    dtype = kind.dtype
    if dtype.kind == "O":
        return content
    _require(not dtype.hasobject and isinstance(content, bytes), "a number of numpy")
    _require(len(content) == dtype.itemsize, "a number of numpy")
    return np.frombuffer(content, dtype)[0] if content else dtype.type()


class _FilledByState:
    """Take attributes from the state in the file, and nothing from the call that makes the object."""

    def __init__(self, *arguments: Any) -> None:
        del arguments
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Take attributes."""
        _require(isinstance(state, dict) and all(isinstance(name, str) for name in state), "a namespace")
        self.__dict__.update(state)


class Namespace(_FilledByState, argparse.Namespace):
    """Stand for an `argparse.Namespace`."""


class SimpleNamespace(_FilledByState, types.SimpleNamespace):
    """Stand for a `types.SimpleNamespace`."""


def _posix_path(*parts: Any) -> PurePosixPath:
    _require(all(type(part) is str for part in parts), "a path")
    return PurePosixPath(*parts)


def _windows_path(*parts: Any) -> PureWindowsPath:
    _require(all(type(part) is str for part in parts), "a path")
    return PureWindowsPath(*parts)


def _dict(*arguments: Any) -> dict[Any, Any]:
    """Return a dict in place of a `defaultdict`, whose function for missing keys is not wanted."""
    _require(len(arguments) <= 2, "a dict")  # noqa: PLR2004 - the function, and the content
    content = arguments[-1] if arguments and type(arguments[-1]) is dict else {}
    return dict(content)


def _items(content: Any = (), longest: Any = None) -> list[Any]:
    """Return a list in place of a `deque`, since torch fills lists only."""
    del longest
    _require(type(content) in _CONTAINERS, "a container")
    return list(content)


def _frozenset(content: Any = ()) -> frozenset[Any]:
    _require(type(content) in _CONTAINERS, "a set")
    return frozenset(content)


def _no_bytes(*arguments: Any) -> bytes:
    """Return no bytes, which pickles write as a call."""
    _require(not arguments, "bytes")
    return b""


def _fraction(*parts: Any) -> Fraction:
    """Return a fraction. Exponents such as 1e999999999 would take all memory."""
    if len(parts) == 1 and isinstance(parts[0], str):
        _require(_NUMBER.fullmatch(parts[0]) is not None, "a fraction")
        return Fraction(parts[0])
    _require(0 < len(parts) <= 2 and all(type(part) is int for part in parts), "a fraction")  # noqa: PLR2004
    return Fraction(*parts)


def _decimal(number: Any = "0") -> decimal.Decimal:
    _require(type(number) is str, "a decimal number")
    return decimal.Decimal(number)


class UUID:
    """Stand for a `uuid.UUID`, whose number is its state."""

    def __setstate__(self, state: Any) -> None:
        """Take the number."""
        _require(isinstance(state, dict) and type(state.get("int")) is int, "a UUID")
        self.value = uuid.UUID(int=state["int"])


def _date(kind: Callable[..., Any]) -> Callable[..., Any]:
    def build(*parts: Any) -> Any:
        plain = (int, float, bytes, dt.timedelta, dt.timezone, str, type(None))
        _require(all(type(part) in plain for part in parts), "a date")
        return kind(*parts)

    return build


def _member(kind: type[enum.Enum]) -> Callable[..., enum.Enum]:
    """Return a function that finds a member of an enum by its value, as pickles do."""

    def find(value: Any = None, *more: Any) -> enum.Enum:
        _require(not more, kind.__name__)
        if issubclass(kind, enum.Flag) and type(value) is int:
            bits = 0
            for flag in kind.__members__.values():
                bits |= flag.value
            _require(0 <= value <= bits and value & ~bits == 0, kind.__name__)  # others would be kept by the class
            return kind(value)
        for member in kind.__members__.values():
            if type(member.value) is type(value) and member.value == value:
                return member
        raise UnpicklingError(f"it holds {value!r:.40} as a member of {kind.__name__}, which has no such one")

    return find


_NUMBERS: Final = (
    *("bool_", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "intc", "intp"),
    *("float16", "float32", "float64", "longdouble", "complex64", "complex128", "clongdouble", "longlong"),
    *("float128", "str_", "bytes_", "datetime64", "timedelta64", "generic", "number", "floating", "integer"),
)
_BUILTINS: Final = ("bool", "int", "float", "str", "list", "dict", "tuple", "object", "type")

_OF_NUMPY: Final[dict[str, Any]] = {
    "numpy.dtype": DType,
    "numpy.ndarray": Array,
    **{f"{core}.multiarray.scalar": _scalar for core in ("numpy.core", "numpy._core")},
    **{f"{core}.multiarray._reconstruct": _reconstruct for core in ("numpy.core", "numpy._core")},
    **{f"{core}.numeric._frombuffer": _from_buffer for core in ("numpy.core", "numpy._core")},
    **{f"numpy.{name}": Named(f"numpy.{name}") for name in _NUMBERS},
}
_OTHERS: Final[dict[str, Any]] = {
    "argparse.Namespace": Namespace,
    "types.SimpleNamespace": SimpleNamespace,
    "collections.defaultdict": _dict,
    "collections.deque": _items,
    "builtins.frozenset": _frozenset,
    "builtins.Ellipsis": Ellipsis,
    "builtins.bytes": _no_bytes,
    "builtins.range": Opaque,
    "builtins.slice": Opaque,
    **{f"builtins.{name}": Named(name) for name in _BUILTINS},
    "typing.Any": Named("typing.Any"),
    **{
        f"{module}.{name}": _posix_path
        for module in ("pathlib", "pathlib._local")
        for name in ("Path", "PosixPath", "PurePosixPath", "PurePath")
    },
    **{
        f"{module}.{name}": _windows_path
        for module in ("pathlib", "pathlib._local")
        for name in ("WindowsPath", "PureWindowsPath")
    },
    "datetime.datetime": _date(dt.datetime),
    "datetime.date": _date(dt.date),
    "datetime.time": _date(dt.time),
    "datetime.timedelta": _date(dt.timedelta),
    "datetime.timezone": _date(dt.timezone),
    "fractions.Fraction": _fraction,
    "decimal.Decimal": _decimal,
    "uuid.UUID": UUID,
    "uuid.SafeUUID": Opaque,
}


def substitute(name: str) -> Any:
    """Return what stands for a global such as `numpy.dtype`; None if the name is not one of a plain value."""
    if (found := _OF_NUMPY.get(name) or _OTHERS.get(name)) is not None:
        return found
    if name.startswith("numpy.dtypes.") and name.endswith("DType"):
        return Named(name)  # the class of a type: torch asks for it, and files do not name it
    if _OPAQUE.fullmatch(name):
        return Opaque
    kind = _enum(name)
    return None if kind is None else _member(kind)


def _enum(name: str) -> type[enum.Enum] | None:
    """Return an enum of the standard library that is in memory. Nothing is imported for a file."""
    module, _, last = name.rpartition(".")
    if module.partition(".")[0] not in sys.stdlib_module_names or module not in sys.modules:
        return None
    found = vars(sys.modules[module]).get(last)
    return found if isinstance(found, type) and issubclass(found, enum.Enum) else None


def allowed_by_task() -> set[str]:
    """Return the names that the task's file allows with `torch.serialization.add_safe_globals`."""
    return {_name_of(one) for one in torch.serialization.get_safe_globals()}


def _name_of(allowed: Any) -> str:
    return allowed[1] if isinstance(allowed, tuple) else f"{allowed.__module__}.{allowed.__qualname__}"


@contextmanager
def plain_objects(names: Collection[str]) -> Iterator[None]:
    """Allow substitutes for these names within the block.

    The task's own permissions count first, except those for numpy: a real class and a substitute do not fit together.
    """
    before = torch.serialization.get_safe_globals()
    own = {_name_of(one) for one in before}
    given: Mapping[str, Any] = {
        name: found
        for name in names
        if (name not in own or name in _OF_NUMPY) and (found := substitute(name)) is not None
    }
    replaced = [one for one in before if _name_of(one) in given]
    if replaced:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals([one for one in before if one not in replaced])
    try:
        with torch.serialization.safe_globals([(found, name) for name, found in given.items()]):
            yield
    finally:
        if replaced:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)
