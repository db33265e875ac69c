"""Compare what the models of all ranks compute for the same first batch, with the same restored values.

A model may hold numbers that no checkpoint has and that each process draws anew: a projection of `default_rng()` in a
plain attribute, say. All restored values are then equal, and all predictions differ. Each rank sends a few sums of its
predictions, which differ by rounding only if the predictions do. Imports numpy, never a framework.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.backend import Int64s
from sidecar.evaluation.row_comparison import tolerance_for
from sidecar.evaluation.task import MAX_EVAL_SETS
from sidecar.protocol.messages import Join

_SIGNS: Final = 2  # sums with other signs, so that differences of two predictions do not cancel each other
_LENGTH, _TOLERANCE, _FIRST_SUM = 0, 1, 2  # places in a summary: length of the vector of predictions, tolerance, sums
_NUMBERS: Final = _FIRST_SUM + _SIGNS
_NOT_A_NUMBER: Final = 3.0  # stands for NaN and infinities, which cannot be added up
_LARGEST: Final = 1e150  # stands for all beyond it: squares of them would not be numbers any more
_BLOCK: Final = 1 << 20

Outputs = NDArray[np.float64]


def short_digest(text: str) -> int:
    """Return 64 bits of a text's digest as a number, which can be sent in a sum."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def differing(column: Int64s) -> list[list[int]]:
    """Return the ranks grouped by value; an empty list if all values are equal."""
    values = list(dict.fromkeys(column.tolist()))
    return [[int(rank) for rank in np.flatnonzero(column == value)] for value in values] if len(values) > 1 else []


def sides_of(groups: list[list[int]], join: Join) -> str:
    """Describe groups of ranks that differ, for a message."""
    return " against ".join(named(ranks, join) for ranks in groups)


def named(ranks: Iterable[int], join: Join) -> str:
    """Describe ranks with their nodes, for a message."""
    return ", ".join(f"rank {rank} on {join.members[rank].node}" for rank in ranks)


def no_outputs() -> Outputs:
    """Return zeros, which stand for "not compared", for each of `MAX_EVAL_SETS` eval sets (sets, numbers)."""
    return np.zeros((MAX_EVAL_SETS, _NUMBERS))


def summary(arrays: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the summary of the predictions of a batch: `_NUMBERS` numbers. Arrays without numbers are left out."""
    generator, square, sums, types = np.random.Generator(np.random.PCG64(0)), 0.0, np.zeros(_SIGNS), []
    for array in arrays:
        if array.dtype.kind not in "biufc" or array.dtype == np.uint8:  # texts, and digests
            continue
        types.append(array.dtype.name)
        flat = array.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            values = np.concatenate([np.real(block), np.imag(block)]) if block.dtype.kind == "c" else block
            values = values.astype(np.float64)
            values[~np.isfinite(values)] = _NOT_A_NUMBER
            np.clip(values, -_LARGEST, _LARGEST, out=values)
            square += float(values @ values)
            for sign in range(_SIGNS):
                sums[sign] += float(values @ (2.0 * generator.integers(0, 2, values.size) - 1.0))
    return np.array([np.sqrt(square) + 1.0, tolerance_for(types), *sums])


def differing_outputs(rows: Sequence[Outputs]) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield the number of each eval set whose predictions differ, with the ranks grouped by what they predict."""
    for place in range(MAX_EVAL_SETS):
        groups: list[list[int]] = []
        for rank, row in enumerate(rows):
            near = (group for group in groups if _are_near(rows[group[0]][place], row[place]))
            if (group := next(near, None)) is not None:
                group.append(rank)
            else:
                groups.append([rank])
        if len(groups) > 1:
            yield place, groups


def what_differs(eval_set: str) -> str:
    """Return what a person should know about ranks that predict differently, without the ranks."""
    keep = "register them with register_buffer(…)" if "torch" in sys.modules else "save them in the checkpoint"
    return (
        f"eval set {eval_set!r}: ranks compute other predictions for its first batch from the same checkpoint. The "
        f"model holds numbers that the checkpoint lacks and that each process draws anew, such as those of "
        f"default_rng() or random.Random() without a seed: {keep}, or give the generator the seed of training. "
        f"Or it writes a file of a fixed name, which other workers overwrite: write it into "
        f"tempfile.TemporaryDirectory()"
    )


def _are_near(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Return whether two summaries differ by rounding only."""
    tolerance = max(one[_TOLERANCE], other[_TOLERANCE]) * max(one[_LENGTH], other[_LENGTH])
    have_near_sums = bool((np.abs(one[_FIRST_SUM:] - other[_FIRST_SUM:]) <= tolerance).all())
    return have_near_sums and bool(abs(one[_LENGTH] - other[_LENGTH]) <= tolerance)
