"""Write lists of arrays as bytes and read them back, without any code in the bytes. Imports numpy, never a framework.

The header is a vector of int64: the number of its entries, the number of lists, then for each list the number of its
arrays, and for each array its type, the number of its axes, and its shape. The bytes of the arrays follow in order.
"""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_NAMES: Final = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
_TYPES: Final = tuple(np.dtype(name) for name in _NAMES.split())


def encode(lists: list[list[NDArray[Any]]]) -> NDArray[np.uint8]:
    """Return lists of arrays as bytes. Raises `TypeError` for an array that does not hold numbers."""
    header = [0, len(lists)]
    for arrays in lists:
        header.append(len(arrays))
        for array in arrays:
            if array.dtype not in _TYPES:
                raise TypeError(f"arrays must hold numbers, found {array.dtype}")
            header += [_TYPES.index(array.dtype), array.ndim, *array.shape]
    header[0] = len(header)
    content = b"".join(array.tobytes() for arrays in lists for array in arrays)
    return np.frombuffer(np.array(header, np.int64).tobytes() + content, np.uint8)


def decode(content: NDArray[np.uint8]) -> list[list[NDArray[Any]]]:
    """Return the lists of arrays that `encode` wrote. Raises `ValueError` for anything else."""
    raw = content.tobytes()
    try:
        length = int(np.frombuffer(raw, np.int64, 1)[0])
        header = iter(np.frombuffer(raw, np.int64, length)[1:].tolist())
        place = 8 * length
        lists: list[list[NDArray[Any]]] = []
        for _ in range(next(header)):
            arrays = []
            for _ in range(next(header)):
                dtype, axes = _TYPES[next(header)], next(header)
                shape = [next(header) for _ in range(axes)]
                arrays.append(np.frombuffer(raw, dtype, math.prod(shape), place).reshape(shape))
                place += arrays[-1].nbytes
            lists.append(arrays)
    except (IndexError, StopIteration) as error:
        raise ValueError("the header of the arrays is damaged") from error
    if place != len(raw):
        raise ValueError(f"the arrays take {place} bytes, found {len(raw)}")
    return lists
