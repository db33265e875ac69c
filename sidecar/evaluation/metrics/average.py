"""Compute a weighted mean of values, Σ w·v / Σ w, from exact states. Imports numpy only."""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.intervals import Interval
from sidecar.evaluation.metrics.clusters import (
    add_alone,
    add_clusters,
    add_places,
    alone_states,
    are_alone,
    cluster_interval,
    cluster_states,
)
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.positions import Positions
from sidecar.evaluation.metrics.sample import IntervalOf, Sample, usual_interval
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum


class Average:
    """Sum what a mean needs, exactly: counts, values, their squares and cubes, and weights.

    The product w·v of two float32 is exact in float64. With a float64 value, each product is rounded once. The `dtype`
    "float32" is cheaper, for float32 values without weights.
    """

    def __init__(self, dtype: Literal["float32", "float64"] = "float64") -> None:
        self._dtype = dtype

    def states(self, info: EvalSetInfo | None = None) -> SetStates:
        """Return new states; with `info`, those of `add_batch`."""
        states = alone_states(info) | ({} if info is None else cluster_states(info))
        states |= {
            "count": ExactSum((), "int64"),  # values of weight 1
            "binary": ExactSum((), "int64"),
            "total": ExactSum((), self._dtype),
            "squares": ExactSum((), "float64"),
            "cubes": ExactSum((), "float64"),
            "weight": ExactSum((), "float32"),  # all weights that are not 1
        }
        return states

    def add(
        self,
        states: SetStates,
        values: NDArray[Any],
        weights: NDArray[np.float32] | None = None,
        *,
        one_per_example: bool = True,
        is_proportion: bool = False,
        places: NDArray[np.intp] | None = None,
        rows: NDArray[np.intp] | None = None,
    ) -> None:
        """Add values (m,) with weights (m,) above 0; with None, all values have the weight 1.

        `one_per_example` says that each value is the only one of its example, and `is_proportion` that no value can be
        below 0 or above 1, as of "right or wrong". The zeros of a loss do not say that. `places` has the number of each
        value's example in the whole set (m,); without it, values that are not independent have no interval. `rows` has
        its number in the batch (m,), for states by slice; None: each row has one value.
        """
        self._add(states, values, weights, rows, one_per_example=one_per_example, is_proportion=is_proportion)
        given = np.ones(values.size, np.float32) if weights is None else weights
        is_plain = weights is None and one_per_example
        add_places(states, places, values.astype(np.float64).reshape(-1), given, rows, is_plain=is_plain)

    def _add(
        self,
        states: SetStates,
        values: NDArray[Any],
        weights: NDArray[np.float32] | None,
        rows: NDArray[np.intp] | None,
        *,
        one_per_example: bool,
        is_proportion: bool,
    ) -> None:
        wide = values.astype(np.float64)
        with np.errstate(all="ignore"):  # the sums count NaN, infinities and overflows
            weighted, squares = values if weights is None else wide * weights, np.square(wide)
            cubes = squares * wide
        is_one = np.ones(wide.shape, np.bool_) if weights is None else weights == 1
        exact_sum(states, "count").add_each(is_one, rows)
        if is_proportion:
            exact_sum(states, "binary").add_each((wide == 0) | (wide == 1), rows)
        for name, each in (("total", weighted), ("squares", squares), ("cubes", cubes)):
            exact_sum(states, name).add_each(each, rows)
        if weights is not None:
            exact_sum(states, "weight").add_each(np.where(is_one, np.float32(0), weights), rows)
        add_alone(states, len(wide), rows, one_per_example=one_per_example)

    def add_batch(
        self,
        states: SetStates,
        batch: EvalBatch,
        values: NDArray[Any],
        positions: Positions,
        *,
        is_proportion: bool = False,
    ) -> None:
        """Add the values (m,) of the positions of a batch that count, with their groups. See `add`."""
        alone, rows = positions.one_per_example, positions.examples
        self._add(states, values, positions.weights, rows, one_per_example=alone, is_proportion=is_proportion)
        add_clusters(states, batch, values.astype(np.float64), positions.weights, positions.examples)

    def count(self, states: SetStates) -> int:
        """Return the number of values of weight 1 that were added."""
        return int(exact_sum(states, "count").integers())

    def total(self, states: SetStates) -> float:
        """Return the exact sum of all weighted values, rounded once."""
        return float(exact_sum(states, "total").round())

    def mean(self, states: SetStates) -> float:
        """Return the sum divided once by the weight; NaN for a total weight of 0."""
        weight = self.count(states) + float(exact_sum(states, "weight").round())
        return self.total(states) / weight if weight else math.nan

    def interval(self, states: SetStates, of: IntervalOf = usual_interval, *, is_proportion: bool = False) -> Interval:
        """Return the interval of the mean; with weights, several values for one example, or groups: their own.

        Values that were not added by `add_batch` have none then.
        """
        if exact_sum(states, "weight").used().any() or not are_alone(states):
            return cluster_interval(states, is_proportion=is_proportion) if of is usual_interval else (None, None)
        if not (count := self.count(states)):
            return None, None
        binary = int(exact_sum(states, "binary").integers())
        squares, cubes = (float(exact_sum(states, name).round()) for name in ("squares", "cubes"))
        return of(Sample(count, self.total(states), squares, binary, cubes))


class MeanLoss:
    """Provide the states and the result of metrics that are a mean of losses. A subclass adds its own loss.

    `curve`: rising function of the mean, and of the ends of its interval, that gives the metric's number.
    """

    def __init__(
        self, name: str, interval: IntervalOf = usual_interval, curve: Callable[[float], float] = float
    ) -> None:
        self.name = name
        self._interval, self._curve = interval, curve
        self._average = Average()

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        return self._average.states(info)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the number; NaN for a total weight of 0."""
        lower, upper = self._average.interval(states, self._interval)
        interval = (None, None) if lower is None or upper is None else (self._curve(lower), self._curve(upper))
        return MetricResult({self.name: value(self._curve(self._average.mean(states)), "min", interval)})
