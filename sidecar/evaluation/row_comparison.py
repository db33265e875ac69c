"""Compare rows that were computed for a whole batch with those for parts of it, up to rounding.

Examples are evaluated with other neighbours, such as in halves of their batch: a row that changes depends on these.
Imports numpy, never a framework.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.failures import EvaluationError, task_error

Divide = Callable[[Sequence[slice]], Sequence[tuple[Batch, int]]]
"""A function that returns parts of a batch with their sizes, given their places; none if it cannot be divided."""

TOLERANCE: Final = 1e-4
"""The largest difference by rounding between float32 values of a batch and of its halves, relative to the largest
value."""

_SMALL: Final = 32  # examples of a batch whose halves cost little
FEW: Final = 3
"""Number of examples that are evaluated on their own, at most. It is the same everywhere: some libraries prepare much
for each new shape."""

_COARSE: Final = {"float16": 2.0**-10, "tfloat32": 2.0**-10, "bfloat16": 2.0**-7, "float8_e8m0fnu": 1.0} | {
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
}  # distance of 1 to the next number
_ROUNDINGS: Final = 4  # of a coarse type, one after the other
_SHARED: Final = 1 / 16
"""The part of the tolerance that is relative to the largest value of all columns instead of the same column: a small
column may be a difference of large numbers."""


def halves_of(examples: int) -> tuple[slice, slice] | None:
    """Return the places of the first and the second half of a batch; None if it has a single example.

    The first half has an odd number of examples: neighbours that depend on each other are parted, such as pairs.
    """
    middle = (examples - 1) // 2 | 1 if examples > 1 else 0
    return (slice(0, middle), slice(middle, examples)) if middle else None


def few_of(examples: int, number: int) -> tuple[slice, ...] | None:
    """Return the places of those examples of a batch, by its number, that the model gets alone; None for a single one.

    They are at both ends of batch 0, or its halves if it is small: the first have an odd number, as in `halves_of`. In
    any other batch they are in the middle. They lack both ends of the batch, have other places than in it, and begin at
    an odd one, so that pairs are parted.
    """
    if number and examples > 1:
        middle = examples // 2 | 1
        return (slice(middle, min(middle + FEW, examples)),)
    return halves_of(examples) if examples <= _SMALL else (slice(0, FEW), slice(examples - FEW, examples))


def told_apart(examples: int, most: int = 8) -> tuple[slice, slice, slice]:
    """Return the places of some examples at the beginning of a batch, then those of a division into two parts.

    The second part has as many examples as the first slice: what is kept by the number of examples is wrong for it.
    `most`: limit of that number. Ranks within a few examples, say, may be the same by chance.
    """
    size = min(most, examples // 2)
    return slice(0, size), slice(0, examples - size), slice(examples - size, examples)


def kept_by_size(what: str) -> EvaluationError:
    """Return the error for a function of a task that returns what it computed for other examples."""
    return task_error(
        f"{what} gives the last examples of a batch what it computed for as many others: it keeps something by the "
        f"shape or the id of its arguments, such as in a dict. Compute it in each call"
    )


def tolerance_for(types: Iterable[Any]) -> float:
    """Return the relative tolerance for values that were computed in the coarsest of these types, given by name."""
    return max([TOLERANCE, *(_ROUNDINGS * _COARSE.get(str(each).rpartition(".")[2], 0.0) for each in types)])


def have_alike_rows(whole: Sequence[NDArray[Any]], halves: Sequence[Sequence[NDArray[Any]]]) -> bool:
    """Return whether arrays (n, …) of the halves can be compared with those of the whole batch, row by row."""
    return all(
        len(half) == len(whole) and all(one.shape[1:] == two.shape[1:] for one, two in zip(whole, half, strict=True))
        for half in halves
    ) and all(len(array) == sum(map(len, parts)) for array, *parts in zip(whole, *halves, strict=True))


def rows_at(arrays: Sequence[NDArray[Any]], places: Sequence[slice], examples: int) -> list[NDArray[Any]] | None:
    """Return the rows of arrays (n, …) at these places of a batch; None if their rows are not its examples.

    The halves of a batch have all rows.
    """
    if places == halves_of(examples):
        return list(arrays)
    if any(len(array) != examples for array in arrays):
        return None
    return [np.concatenate([array[place] for place in places]) for array in arrays]


def rows_differ(
    whole: Sequence[NDArray[Any]], halves: Sequence[Sequence[NDArray[Any]]], tolerance: float = TOLERANCE
) -> bool:
    """Return whether rows of the halves differ from those of the whole batch by more than rounding, or in number."""
    if not have_alike_rows(whole, halves):
        return True
    return any(
        not are_near(array, np.concatenate(parts), tolerance) for array, *parts in zip(whole, *halves, strict=True)
    )


def is_telling(arrays: Sequence[NDArray[Any]]) -> bool:
    """Return whether rows differ. A model that predicts the same for all examples, such as a new one, hides a lot."""
    return any(array.dtype.hasobject or (len(array) > 0 and bool((array != array[:1]).any())) for array in arrays)


def are_near(one: Any, other: Any, tolerance: float = TOLERANCE) -> bool:
    """Return whether numbers or arrays (n, …) of one shape differ by at most the tolerance times the largest of them.

    Integers and texts must be equal.
    """
    one, other = np.atleast_1d(one), np.atleast_1d(other)
    if one.shape != other.shape:
        return False
    if one.dtype.hasobject or other.dtype.hasobject:
        return all(_are_like(*each, tolerance) for each in zip(one.ravel(), other.ravel(), strict=True))
    if one.dtype.kind not in "fcV" and other.dtype.kind not in "fcV":
        return bool((one == other).all())
    kind: type[Any] = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    first, second = one.astype(kind), other.astype(kind)
    with np.errstate(all="ignore"):
        same = (first == second) | (np.isnan(first) & np.isnan(second))
        magnitudes = np.maximum(np.abs(first), np.abs(second))
        magnitudes[~np.isfinite(magnitudes)] = 0.0
        by_column = magnitudes.max(axis=0, initial=0.0)
        allowed = tolerance * (by_column + _SHARED * by_column.max(initial=0.0))
        return bool((same | (np.abs(first - second) <= allowed)).all())


def _are_like(one: Any, other: Any, tolerance: float) -> bool:
    """Return whether two objects, such as texts, or arrays of the boxes in an image, differ by rounding only."""
    if isinstance(one, np.ndarray | np.generic | float) or isinstance(other, np.ndarray | np.generic | float):
        return are_near(one, other, tolerance)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_are_like(one[name], other[name], tolerance) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_are_like(*each, tolerance) for each in zip(one, other, strict=True))
    if isinstance(one, str | bytes | bool | int):
        return bool(one == other)
    return type(one) is type(other)
