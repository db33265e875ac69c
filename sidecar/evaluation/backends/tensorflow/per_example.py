"""A mean of values that are seen one by one, as exact states. Imports numpy only."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.intervals import Interval
from sidecar.evaluation.metrics.sample import Sample, usual_interval
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum


class PerExample:
    """A mean and its interval: counts, sum and squares of values that are seen one by one."""

    def states(self) -> SetStates:
        """The identity of every state."""
        return {
            "count": ExactSum((), "int64"),
            "binary": ExactSum((), "int64"),
            "total": ExactSum((), "float32"),
            "squares": ExactSum((), "float64"),
        }

    def add(self, states: SetStates, values: list[NDArray[Any]]) -> None:
        """Add the values of several batches, of any shape."""
        array = np.concatenate([each.ravel() for each in values]).astype(np.float32, copy=False)
        exact_sum(states, "count").add(np.int64(array.size))
        exact_sum(states, "binary").add(np.int64(np.count_nonzero((array == 0) | (array == 1))))
        exact_sum(states, "total").add_each(array)
        exact_sum(states, "squares").add_each(np.square(array.astype(np.float64)))

    def count(self, states: SetStates) -> int:
        """How many values were seen."""
        return int(exact_sum(states, "count").integers())

    def total(self, states: SetStates) -> float:
        """Their exact sum, rounded once."""
        return float(exact_sum(states, "total").round())

    def mean(self, states: SetStates) -> float:
        """Divided once; NaN for none."""
        count = self.count(states)
        return self.total(states) / count if count else math.nan

    def interval(self, states: SetStates) -> Interval:
        """95 % interval of the mean: Wilson's if all values are 0 or 1, else the normal one."""
        if not (count := self.count(states)):
            return None, None
        binary, squares = int(exact_sum(states, "binary").integers()), float(exact_sum(states, "squares").round())
        return usual_interval(Sample(count, self.total(states), squares, binary))
