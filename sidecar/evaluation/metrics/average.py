"""A weighted mean of values, Σ w·v / Σ w, as exact states. Imports numpy only."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.intervals import Interval
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.sample import IntervalOf, Sample, usual_interval
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum


class Average:
    """The states of a mean.

    w·v of two float32 is exact in float64; of a float64 value it is rounded once, for each value by itself.
    """

    def states(self) -> SetStates:
        """The identity of every state."""
        return {
            "count": ExactSum((), "int64"),  # of weight 1
            "weight": ExactSum((), "float32"),  # of all others
            "total": ExactSum((), "float64"),
            "beside": ExactSum((), "int64"),  # not the only one of their example
            "binary": ExactSum((), "int64"),
            "squares": ExactSum((), "float64"),
        }

    def add(self, states: SetStates, values: NDArray[Any], weights: NDArray[np.float32], *, alone: bool) -> None:
        """Add values (m,) with weights (m,) above 0; `alone` if each is the only one of its example."""
        wide = values.astype(np.float64)
        with np.errstate(all="ignore"):  # NaN, infinities and what overflows are counted by the sums
            weighted, squares = wide * weights, np.square(wide)
        count = np.count_nonzero(weights == 1)
        exact_sum(states, "count").add(np.int64(count))
        exact_sum(states, "weight").add_each(weights[weights != 1])
        exact_sum(states, "total").add_each(weighted)
        exact_sum(states, "beside").add(np.int64(0 if alone else len(wide)))
        exact_sum(states, "binary").add(np.int64(np.count_nonzero((wide == 0) | (wide == 1))))
        exact_sum(states, "squares").add_each(squares)

    def mean(self, states: SetStates) -> float:
        """Divided once; NaN for a total weight of 0."""
        weight = int(exact_sum(states, "count").integers()) + float(exact_sum(states, "weight").round())
        return float(exact_sum(states, "total").round()) / weight if weight else math.nan

    def interval(self, states: SetStates, of: IntervalOf) -> Interval:
        """Of the mean; none where values have weights or several belong to one example."""
        if exact_sum(states, "weight").used().any() or int(exact_sum(states, "beside").integers()):
            return None, None
        count, binary = (int(exact_sum(states, each).integers()) for each in ("count", "binary"))
        total, squares = (float(exact_sum(states, each).round()) for each in ("total", "squares"))
        return of(Sample(count, total, squares, binary)) if count else (None, None)


class MeanLoss:
    """What metrics have in common that are a mean of losses; each adds its own.

    Args:
        name: Of the metric and its number.
        interval: How the 95 % interval is made, where values are unweighted and there is one per example.
    """

    def __init__(self, name: str, interval: IntervalOf = usual_interval) -> None:
        self.name = name
        self._interval = interval
        self._average = Average()

    def states(self, extent: EvalSetInfo) -> SetStates:
        """The identity of every state."""
        del extent  # sums do not depend on it
        return self._average.states()

    def conclude(self, states: SetStates) -> MetricResult:
        """The mean; NaN for a total weight of 0."""
        interval = self._average.interval(states, self._interval)
        return MetricResult({self.name: value(self._average.mean(states), "min", interval)})
