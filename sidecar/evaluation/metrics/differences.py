"""Subtract numbers of any type without a detour through float64, which has 53 bits. Imports numpy only.

Times in nanoseconds since 1970 and hashes are integers of 61 to 64 bits: as float64 they are off by up to 1024.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_EXACT: Final = 2**53  # all integers up to this one are float64
_LOW_BITS: Final = 0xFFFFFFFF


def difference(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    """Return a - b as float64: of integers exactly, rounded once; NaN and infinities as usual."""
    if _is_exact(a) and _is_exact(b):
        return np.asarray(a.astype(np.float64) - b.astype(np.float64), np.float64)
    if a.dtype.kind in "iub" and b.dtype.kind in "iub":
        return _of_integers(a, b)
    (a_high, a_low), (b_high, b_low) = parts(a), parts(b)
    with np.errstate(all="ignore"):
        high = a_high - b_high
        turned = high - a_high
        error = (a_high - (high - turned)) - (b_high + turned)  # what `high` lacks: Knuth's sum of two numbers
        low = np.where(np.isfinite(error), error, 0.0) + (a_low - b_low)
        return np.asarray(high + low, np.float64)


def parts(values: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return two arrays whose sum is exactly the values; the second one is 0 except for integers beyond 2^53."""
    if _is_exact(values):
        return values.astype(np.float64), np.zeros(values.shape)
    low = values & values.dtype.type(_LOW_BITS)
    return (values - low).astype(np.float64), low.astype(np.float64)


def is_exact_as_float(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are the same number as float64."""
    if _is_exact(values):
        return np.ones(values.shape, np.bool_)
    low = parts(values)[1]
    floats = values.astype(np.float64)
    same: NDArray[np.bool_] = (floats - parts(values)[0]) == low
    return same


def _is_exact(values: NDArray[Any]) -> bool:
    """Return whether all values are float64, or become it without rounding."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize <= 4 or not values.size:  # noqa: PLR2004 - 32 bits
        return True
    return int(values.min()) >= -_EXACT and int(values.max()) <= _EXACT


def _of_integers(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    """Subtract integers of 64 bits: the size of a difference fits into uint64 if both have the same sign bit."""
    a, b = np.broadcast_arrays(a, b)
    if "u" in (a.dtype.kind, b.dtype.kind) and a.dtype != b.dtype:
        return np.asarray(a.astype(object) - b.astype(object), np.float64)  # up to 65 bits
    if a.dtype != b.dtype:
        a, b = a.astype(np.int64), b.astype(np.int64)
    with np.errstate(all="ignore"):  # the differences wrap around, and are right in uint64
        up, down = (a.astype(np.uint64) - b.astype(np.uint64)), (b.astype(np.uint64) - a.astype(np.uint64))
    return np.asarray(np.where(a >= b, up.astype(np.float64), -down.astype(np.float64)), np.float64)
