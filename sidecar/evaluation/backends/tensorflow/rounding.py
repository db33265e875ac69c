"""Compare sums of the same floats, which may differ by rounding. Works without TensorFlow."""

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

_SPARE: Final = 8
"""Additional roundings that are allowed, because a metric may add several values to a state in one update."""

TOLERANCE: Final = 1e-4
"""The largest difference by rounding between float32 sums over a batch and over its halves, relative to the largest
number of an array."""


def is_rounded_sum(computed: NDArray[Any], parts: Sequence[NDArray[Any]], additions: int = 0) -> bool:
    """Return whether an array is the sum of others of the same type, up to the rounding of additions in turn.

    `additions` is the number of values that may have been added one by one to a state, if it is known.
    """
    if computed.dtype.kind in "biu":
        return bool((computed == np.add.reduce(parts, dtype=computed.dtype)).all())
    with np.errstate(all="ignore"):
        wide = np.asarray(parts).astype(np.float64)
        total, magnitude = wide.sum(axis=0), np.abs(wide).sum(axis=0)
        rounded = total.astype(computed.dtype).astype(np.float64)  # infinite if beyond the largest number of the type
        tolerance = _epsilon(computed.dtype) * (len(parts) + max(_SPARE, additions)) * magnitude
        near = np.abs(computed.astype(np.float64) - total) <= tolerance
    return bool((near | _same(computed.astype(np.float64), rounded)).all())


def is_near(one: NDArray[Any], other: NDArray[Any], tolerance: float = TOLERANCE) -> bool:
    """Return whether arrays of one shape differ by at most `tolerance` times the largest finite number in them."""
    if np.shape(one) != np.shape(other):
        return False
    with np.errstate(all="ignore"):
        first, second = np.asarray(one).astype(np.float64), np.asarray(other).astype(np.float64)
        same = _same(first, second)
        finite = np.abs(np.concatenate([first[~same], second[~same]]))
        scale = np.abs(np.concatenate([first.ravel(), second.ravel()]))
        largest = scale[np.isfinite(scale)].max(initial=0.0)
        return bool(np.isfinite(finite).all() and (np.abs(first - second)[~same] <= tolerance * largest).all())


def tolerance_of(*dtypes: Any) -> float:
    """Return the relative tolerance for values that were computed in the coarsest of these types, given by name."""
    coarse = [str(dtype) for dtype in dtypes if str(dtype) in ("float16", "bfloat16")]
    return max([TOLERANCE, *(4 * _epsilon(dtype) for dtype in coarse)])


def _same(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (one == other) | (np.isnan(one) & np.isnan(other))
    return same


def _epsilon(dtype: Any) -> float:
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).eps)
