"""Compare sums of the same floats, which differ by rounding only. Needs no TensorFlow."""

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

_SPARE: Final = 8
"""A metric may add several values to a state in one update."""

TOLERANCE: Final = 1e-4
"""Sums of a batch in float32, and of its halves, differ by roundings; relative to the largest of an array."""


def is_rounded_sum(found: NDArray[Any], parts: Sequence[NDArray[Any]]) -> bool:
    """Return whether an array is the sum of others of its type, which were added one after the other in that type."""
    if found.dtype.kind in "biu":
        return bool((found == np.add.reduce(parts, dtype=found.dtype)).all())
    with np.errstate(all="ignore"):
        wide = np.asarray(parts).astype(np.float64)
        total, magnitude = wide.sum(axis=0), np.abs(wide).sum(axis=0)
        rounded = total.astype(found.dtype).astype(np.float64)  # beyond its largest: infinite
        near = np.abs(found.astype(np.float64) - total) <= _epsilon(found.dtype) * (len(parts) + _SPARE) * magnitude
    return bool((near | _same(found.astype(np.float64), rounded)).all())


def is_near(one: NDArray[Any], other: NDArray[Any], tolerance: float = TOLERANCE) -> bool:
    """Return whether two arrays differ by little, compared with the largest number in them."""
    with np.errstate(all="ignore"):
        first, second = np.asarray(one).astype(np.float64), np.asarray(other).astype(np.float64)
        same = _same(first, second)
        finite = np.abs(np.concatenate([first[~same], second[~same]]))
        scale = np.abs(np.concatenate([first.ravel(), second.ravel()]))
        largest = scale[np.isfinite(scale)].max(initial=0.0)
        return bool(np.isfinite(finite).all() and (np.abs(first - second)[~same] <= tolerance * largest).all())


def tolerance_of(*dtypes: Any) -> float:
    """Return the relative tolerance for values computed in the coarsest of these types, given by name."""
    floats = [str(each) for each in dtypes if str(each) in ("float16", "bfloat16")]
    return max([TOLERANCE, *(4 * _epsilon(each) for each in floats)])


def _same(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (one == other) | (np.isnan(one) & np.isnan(other))
    return found


def _epsilon(dtype: Any) -> float:
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).eps)
