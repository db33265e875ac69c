"""Read the code of functions that Keras stores in configurations, as data, to compare two of them.

Keras writes the code of a Lambda layer with `marshal`, whose bytes also hold the file and the lines of the function, so
equal functions of two files have different bytes. `marshal.loads` is not safe for files of others; this reader builds
only tuples, numbers and texts. Source of the format: CPython `Python/marshal.c`, versions 3.11 to 3.14.
"""

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Any, Final

_FLAG: Final = 0x80  # the object is referred to later
_DEEPEST: Final = 50
_PARTS: Final = 3  # of a function of tf_keras: code, defaults, closure
_SINGLETONS: Final = {"N": "None", "T": "True", "F": "False", ".": "Ellipsis", "S": "StopIteration"}
_FIXED: Final = {"i": 4, "g": 8, "y": 16}  # bytes of numbers
_TEXTS: Final = {"s": "bytes", **dict.fromkeys("utaAzZ", "str")}
_SEVERAL: Final = {**dict.fromkeys(")([", "tuple"), **dict.fromkeys("<>", "set")}
_SHORT: Final = "zZ)"

Function = tuple[str, Any, Any]
"""Code, defaults and closure of a function."""


def function_of(value: Any) -> Function | None:
    """Return code, defaults and closure of a function in a configuration; None for any other value."""
    if isinstance(value, Mapping) and value.get("class_name") == "__lambda__" and isinstance(value["config"], Mapping):
        config = value["config"]
        parts = [config.get("code", config.get("value")), config.get("defaults"), config.get("closure")]
    elif isinstance(value, list) and len(value) == _PARTS:
        parts = value
    else:
        return None
    return (parts[0], parts[1], parts[2]) if isinstance(parts[0], str) else None


def read_code(text: str) -> Any:
    """Return what a code object computes, as nested tuples, without its names of files and lines.

    Raises `ValueError` for anything else, such as the code of another version of Python.
    """
    try:
        reader = _Reader(base64.b64decode(text))
        code = reader.read(0)
    except (IndexError, struct.error, binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"not the code of a function: {error}") from error
    if not isinstance(code, tuple) or code[:1] != ("code",):
        raise ValueError("not the code of a function")
    return code


class _Reader:
    """Read marshalled objects."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0
        self._known: list[Any] = []

    def read(self, depth: int) -> Any:
        """Return the next object."""
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        kind = self._bytes(1)[0]
        index = len(self._known)
        if kind & _FLAG:
            self._known.append(None)
        found = self._object(chr(kind & ~_FLAG), depth + 1)
        if kind & _FLAG:
            self._known[index] = found
        return found

    def _object(self, kind: str, depth: int) -> Any:
        if kind in _SINGLETONS:
            return (_SINGLETONS[kind],)
        if kind in _FIXED:
            return (kind, self._bytes(_FIXED[kind]))
        if kind in _TEXTS:
            return (_TEXTS[kind], self._bytes(self._count(kind)))
        if kind in _SEVERAL:
            items = self._several(self._count(kind), depth)
            return (_SEVERAL[kind], *(sorted(items, key=repr) if _SEVERAL[kind] == "set" else items))
        if kind not in ("r", "l", "c"):
            raise ValueError(f"an object of kind {kind!r}")
        if kind == "l":
            digits = self._int()
            return (kind, digits, self._bytes(2 * abs(digits)))
        return self._known[self._int()] if kind == "r" else self._code(depth)

    def _count(self, kind: str) -> int:
        """Return the size of an object, which is one byte for the short kinds."""
        return self._bytes(1)[0] if kind in _SHORT else self._int()

    def _code(self, depth: int) -> Any:
        """Return a code object of Python 3.11 and later, without names of variables, files and lines."""
        argcount, positional, keywords, _, flags = (self._int() for _ in range(5))
        code, consts, names, _, kinds, _, _, _ = (self.read(depth) for _ in range(8))
        self._int()  # the first line
        self.read(depth)
        exceptions = self.read(depth)
        return ("code", argcount, positional, keywords, flags, code, consts, names, kinds, exceptions)

    def _several(self, count: int, depth: int) -> list[Any]:
        if count > len(self._data):
            raise ValueError("longer than its bytes")
        return [self.read(depth) for _ in range(count)]

    def _int(self) -> int:
        return int.from_bytes(self._bytes(4), "little", signed=True)

    def _bytes(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self._place:
            raise ValueError("longer than its bytes")
        self._place += count
        return self._data[self._place - count : self._place]
