"""Compute the share of the weight that is right, from exact counts. Imports numpy only."""

import math

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.intervals import Interval
from sidecar.evaluation.metrics.sample import IntervalOf, Sample
from sidecar.evaluation.metrics.tally import Tally
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum


class Proportion:
    """Sum the weights of wrong positions and those of right positions, and divide them once."""

    def __init__(self) -> None:
        self._tally = Tally((2,))

    def states(self) -> SetStates:
        """Return new states."""
        return self._tally.states() | {"several": ExactSum((), "int64")}  # positions that share an example

    def add(
        self,
        states: SetStates,
        right: NDArray[np.bool_],
        unknown: NDArray[np.bool_],
        weights: NDArray[np.float32],
        *,
        one_per_example: bool,
    ) -> None:
        """Add positions (m,) that are right, wrong or unknown, with weights (m,) above 0.

        `one_per_example` says that each position is the only one of its example.
        """
        self._tally.add(states, np.where(unknown, -1, right.astype(np.int64)), weights)
        exact_sum(states, "several").add(np.int64(0 if one_per_example else len(right)))

    def number(self, states: SetStates) -> float:
        """Return the proportion, divided once; NaN for a total weight of 0, and if a position was unknown."""
        wrong, right = self._tally.totals(states).tolist()
        return right / (wrong + right) if wrong + right else math.nan

    def interval(self, states: SetStates, of: IntervalOf) -> Interval:
        """Return the interval of the proportion; none with weights, or if several values belong to one example."""
        wrong, right = self._tally.totals(states).tolist()
        if math.isnan(right) or not self._tally.is_counted(states) or int(exact_sum(states, "several").integers()):
            return None, None
        count = int(wrong + right)
        return of(Sample(count, right, right, count)) if count else (None, None)
