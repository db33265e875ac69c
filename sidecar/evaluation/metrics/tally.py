"""Add up the weight of each cell of an array without rounding. Imports numpy only.

Weights of 1 are counted in int64. Other weights enter an exact sum, which is empty if there are none. So counts of
sets without weights stay integers, and a mask of zeros and ones is as exact as no mask.
"""

import math

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.states import ExactSum, SetStates, exact_sum


class Tally:
    """Sum weights by cell, of an array of cells."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def states(self) -> SetStates:
        """Return new states."""
        return {
            "counts": ExactSum(self._shape, "int64"),
            "weights": ExactSum(self._shape, "float32"),
            "outside": ExactSum((), "int64"),
        }

    def add(
        self,
        states: SetStates,
        cells: NDArray[np.int64],
        weights: NDArray[np.float32],
        rows: NDArray[np.intp] | None = None,
    ) -> None:
        """Add weights (m,) above 0 to cells (m,), numbered in C order; a number below 0 means no cell.

        `rows`: the number of each one's example in the batch (m,), for states by slice.
        """
        inside, is_one = cells >= 0, weights == 1
        known = np.where(inside, cells, 0)
        exact_sum(states, "outside").add_each(~inside, rows)
        exact_sum(states, "counts").add_at(known, inside & is_one, rows)
        if not is_one.all():
            others = np.where(inside & ~is_one, weights, np.float32(0))
            exact_sum(states, "weights").add_at(known, others, rows)

    def is_counted(self, states: SetStates) -> bool:
        """Return whether all weights were 1."""
        return not exact_sum(states, "weights").used().any()

    def totals(self, states: SetStates) -> NDArray[np.float64]:
        """Return the weight of each cell; all NaN if a weight was added to no cell."""
        sums = exact_sum(states, "counts").integers() + exact_sum(states, "weights").round()
        return np.full(self._shape, math.nan) if int(exact_sum(states, "outside").integers()) else np.asarray(sums)
