"""Hash type, shape and contents of arrays. Two batches have the same digest only if every bit is equal."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def feed(update: Callable[[Any], None], array: NDArray[Any]) -> None:
    """Pass type, shape and contents of an array to `update`, the method of a hash object."""
    if array.dtype.hasobject:
        update(f"text{array.shape}".encode())
        for text in array.ravel().tolist():
            encoded = as_bytes(text)
            update(len(encoded).to_bytes(8, "little") + encoded)
    else:
        update(f"{array.dtype}{array.shape}".encode())
        update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def digest_of(arrays: Iterable[NDArray[Any]]) -> bytes:
    """Return the digest of several arrays in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        feed(digest.update, array)
    return digest.digest()


def as_bytes(text: Any) -> bytes:
    """Return an element of an array of objects as bytes: a text, or a row as `is_plain_row` says.

    Raises `TypeError` for any other object.
    """
    if isinstance(text, bytes):
        return text
    if isinstance(text, str):
        return text.encode(errors="surrogatepass")
    if isinstance(text, Mapping):
        text = [part for pair in sorted(text.items(), key=lambda pair: str(pair[0])) for part in pair]
    if isinstance(text, list | tuple):
        parts = [type(part).__name__.encode() + b" " + as_bytes(part) for part in text]
        return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    if isinstance(text, np.ndarray):
        return f"{text.dtype}{text.shape}".encode() + np.ascontiguousarray(text).tobytes()
    if text is None or isinstance(text, bool | int | float | np.generic):
        return repr(text).encode()
    raise TypeError(f"an array of objects must hold texts, found {type(text).__name__}: convert it to numbers or texts")


def is_plain_row(row: Any) -> bool:
    """Return whether a row consists of texts, numbers, arrays of numbers, and lists and dicts of such."""
    if isinstance(row, Mapping):
        return all(isinstance(name, str) and is_plain_row(part) for name, part in row.items())
    if isinstance(row, list | tuple):
        return all(map(is_plain_row, row))
    if isinstance(row, np.ndarray):
        return not row.dtype.hasobject
    return row is None or isinstance(row, str | bytes | bool | int | float | np.generic)
