"""Select the positions of a batch that count, without those of weight 0. Imports numpy only.

A position is an item with its own weight: an example, or one place of a sequence. Positions of weight 0 are dropped
first, so padding may hold any values, such as labels of -1 or NaN. Weights are float32, as in Keras.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError

_AS_NUMBERS: Final = {
    **dict.fromkeys("OUS", "write np.searchsorted(classes, y), with the sorted classes of the model, or "),
    **dict.fromkeys("mM", "write y.astype(np.int64), or "),
}
"""A line that makes numbers of other values, by the kind of their type."""

_SMALLEST_WEIGHT: Final = float(np.finfo(np.float32).smallest_normal)
_LARGEST_WEIGHT: Final = 1e30  # so that no sum of a batch's weights is beyond float32


@dataclass(frozen=True, slots=True)
class Positions:
    """The m positions of a batch that count."""

    arrays: tuple[NDArray[Any], ...]  # the given arrays, each reduced to (m, …)
    weights: NDArray[np.float32]  # weights (m,), above 0
    places: NDArray[np.intp]  # number of each position among all positions of the batch (m,)
    one_per_example: bool  # whether each position is the only one of its example; intervals need to know
    # number of each position's example in the batch (m,); None: rows are not examples
    examples: NDArray[np.intp] | None

    @property
    def actual(self) -> NDArray[Any]:
        """Numbers of the classes, or values (m,), where labels and predictions are the arrays."""
        return self.arrays[0]

    @property
    def predicted(self) -> NDArray[Any]:
        """Scores of the classes (m, classes), or values (m,), where labels and predictions are the arrays."""
        return self.arrays[1]


def counting(
    metric: str,
    weights: NDArray[Any] | None,
    shape: tuple[int, ...],
    *arrays: NDArray[Any],
    examples: int | None = None,
) -> Positions:
    """Select the positions that count in arrays (*shape, …), where `shape` is the shape of the positions (n, …).

    `examples` is the number of examples in the batch; None: n. Raises `TaskError` for weights of another shape, and for
    weights that are negative, not finite, or above 1e30.
    """
    size, one_per_example = int(np.prod(shape)), len(shape) == 1 and examples in (None, shape[0])
    of_examples = None
    if examples in (None, shape[0]):
        of_examples = np.arange(size) // max(1, size // max(1, shape[0]))
    flat = [array.reshape(size, *array.shape[len(shape) :]) for array in arrays]
    if weights is None:
        return Positions(tuple(flat), np.ones(size, np.float32), np.arange(size), one_per_example, of_examples)
    given = _broadcast(metric, as_numbers(metric, "weights", weights), shape)
    with np.errstate(all="ignore"):
        flat_weights = given.astype(np.float32)
    wrong = flat_weights[~((flat_weights >= 0) & (flat_weights <= _LARGEST_WEIGHT))]
    if wrong.size:
        raise TaskError(
            f"metric {metric!r}: weights must be from 0 to {_LARGEST_WEIGHT:g}, found {wrong[0]:g}: "
            f"to leave an example out, give it the weight 0"
        )
    _require_within_float32(metric, given, flat_weights)
    places = np.flatnonzero(flat_weights)
    return Positions(
        arrays=tuple(array[places] for array in flat),
        weights=flat_weights[places],
        places=places,
        one_per_example=one_per_example,
        examples=None if of_examples is None else of_examples[places],
    )


def _require_within_float32(metric: str, given: NDArray[Any], weights: NDArray[np.float32]) -> None:
    """Raise `TaskError` if all weights of a batch are below the range of float32, and lose digits in it or become 0.

    Next to a larger one they do not matter.
    """
    if (largest := given.max(initial=0)) >= _SMALLEST_WEIGHT or (weights == given).all():
        return
    raise TaskError(
        f"metric {metric!r}: {np.count_nonzero(given)} weights of a batch are below the range of float32, the largest "
        f"is {largest:g}: multiply all weights by the same number, such as 1e30"
    )


def as_numbers(metric: str, part: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return floats, integers or bool unchanged, bfloat16 as float32. Raises `TaskError` for anything else."""
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    if array.dtype.kind not in "fiub" or array.dtype == np.longdouble:
        line = _AS_NUMBERS.get(array.dtype.kind, "")
        raise TaskError(
            f"metric {metric!r}: {part} must be numbers, found dtype {array.dtype}: {line}convert them in the data"
        )
    return array


def without_trailing_ones(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array without trailing axes of length 1: (n, 1) becomes (n,)."""
    while array.ndim > 1 and array.shape[-1] == 1:
        array = array[..., 0]
    return array


def _broadcast(metric: str, weights: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return one weight per position as a flat array; the weight of an example applies to all its positions."""
    array = weights
    while array.ndim > len(shape) and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim and array.ndim <= len(shape):
        array = array.reshape(*array.shape, *(1,) * (len(shape) - array.ndim))
        if array.shape[0] == shape[0] and all(
            size in (1, other) for size, other in zip(array.shape, shape, strict=True)
        ):
            return np.broadcast_to(array, shape).reshape(-1)
    raise TaskError(
        f"metric {metric!r}: weights {weights.shape} do not match values {shape}: "
        f"give one for each example, ({shape[0]},), or one for each value, {shape}"
    )
