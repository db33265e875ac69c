"""Hash type, shape and contents of arrays. Two batches have the same digest only if every bit is equal."""

import hashlib
from collections.abc import Callable, Iterable
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
    """Return an element of an array of texts as bytes; raises `TypeError` for an object that is not a text."""
    if isinstance(text, bytes):
        return text
    if isinstance(text, str):
        return text.encode(errors="surrogatepass")
    raise TypeError(f"an array of objects must hold texts, found {type(text).__name__}: convert it to numbers or texts")
