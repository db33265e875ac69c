"""Average the values that a function returns for each example. Imports numpy only."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.data.plain_arrays import plain_array
from sidecar.evaluation.metrics.average import Average
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, Goal, MetricResult, value
from sidecar.evaluation.metrics.positions import as_numbers, counting, without_trailing_ones
from sidecar.evaluation.metrics.sample import IntervalOf, usual_interval
from sidecar.evaluation.states import SetStates

_BOUNDS: Final = 2


class Mean:
    """Average the values of a function of (labels, predictions), or the predictions themselves: Σ w·v / Σ w.

    Args:
        function: Takes numpy arrays (n, …), or lists of n objects, such as texts, if the task gives lists. Returns one
            value for each example (n,) or position (n, …).
        name: Name of the metric and of its number.
        goal: "max" if larger values are better, "min" if smaller ones are, "none" if neither.
        bounds: Least and largest value that an example can have, such as (0, 1) for "right or wrong"; None: unknown.
            The interval stays within them. Bools have the bounds (0, 1).
        interval: Function that makes the 95 % interval. Used if values have no weights and there is one per example.
    """

    def __init__(
        self,
        function: Callable[[NDArray[Any], NDArray[Any]], Any] | None = None,
        *,
        name: str = "mean",
        goal: Goal = "none",
        bounds: tuple[float, float] | None = None,
        interval: IntervalOf = usual_interval,
    ) -> None:
        if function is not None and not callable(function):
            raise TaskError(f"metric {name!r}: Mean takes a function of (y, predictions), found {function!r}")
        if bounds is not None and not (len(bounds) == _BOUNDS and bounds[0] < bounds[1]):
            raise TaskError(f"metric {name!r}: bounds={bounds!r} must be (least, largest), such as (0, 1)")
        self.name, self._bounds = name, bounds
        self._function, self._goal, self._interval = function, goal, interval
        self._average = Average()

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        del info  # sums do not depend on it
        return self._average.states()

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` unless there is a value for each example."""
        returned = batch.predictions if self._function is None else self._function(*batch.given)
        try:
            values = as_numbers(self.name, "values", plain_array(returned))
        except ValueError as error:
            raise TaskError(f"metric {self.name!r}: its function did not return an array: {error}") from None
        if not values.ndim or len(values) not in (len(batch.predictions), batch.examples):
            raise TaskError(
                f"metric {self.name!r}: its function must return one value for each of {len(batch.predictions)} "
                f"examples, found shape {values.shape}: the metric averages them itself"
            )
        values = without_trailing_ones(values)
        if (
            self._bounds is not None
            and (beyond := values[(values < self._bounds[0]) | (values > self._bounds[1])]).size
        ):
            raise TaskError(f"metric {self.name!r}: found the value {beyond.flat[0]:g} beyond bounds={self._bounds!r}")
        positions = counting(self.name, batch.weights, values.shape, values, examples=batch.examples)
        self._average.add(
            states,
            positions.arrays[0],
            positions.weights,
            one_per_example=positions.one_per_example,
            is_proportion=values.dtype == np.bool_ or self._bounds == (0, 1),
        )

    def compute(self, states: SetStates) -> MetricResult:
        """Return the mean; NaN for a total weight of 0."""
        interval = self._average.interval(states, self._interval)
        if self._bounds is not None and interval[0] is not None:
            interval = max(interval[0], self._bounds[0]), min(interval[1], self._bounds[1])
        return MetricResult({self.name: value(self._average.mean(states), self._goal, interval)})
