"""How far predicted values are from the labels: MSE, RMSE, MAE. Imports numpy only.

Every value counts: of labels (n, d) the mean is over n·d values, as scikit-learn's `uniform_average`.
"""

import math

import numpy as np

from sidecar.worker.metrics.average import Average
from sidecar.worker.metrics.metric import Extent, Numbers, Seen, value
from sidecar.worker.metrics.pairs import values
from sidecar.worker.metrics.sample import IntervalOf, usual_interval
from sidecar.worker.states import SetStates


class MSE:
    """Mean squared error of predictions (n, …) for labels of the same shape; NaN if either is, where it counts.

    Args:
        name: Of the metric and its number.
        interval: How the 95 % interval is made, where values are unweighted and there is one per example.
    """

    def __init__(self, *, name: str = "mse", interval: IntervalOf = usual_interval) -> None:
        self.name = name
        self._interval = interval
        self._average = Average()

    def states(self, extent: Extent) -> SetStates:
        """The identity of every state."""
        del extent  # sums do not depend on it
        return self._average.states()

    def add(self, states: SetStates, seen: Seen) -> None:
        """Add one batch. Raises `TaskError` for shapes that differ."""
        _add_errors(self._average, states, self.name, seen, squared=True)

    def conclude(self, states: SetStates) -> Numbers:
        """The mean squared error; NaN for a total weight of 0."""
        interval = self._average.interval(states, self._interval)
        return Numbers({self.name: value(self._average.mean(states), "min", interval)})


class RMSE:
    """Root of the mean squared error, taken once, of the mean over all examples; no interval.

    Args:
        name: Of the metric and its number.
    """

    def __init__(self, *, name: str = "rmse") -> None:
        self.name = name
        self._average = Average()

    def states(self, extent: Extent) -> SetStates:
        """The identity of every state."""
        del extent  # sums do not depend on it
        return self._average.states()

    def add(self, states: SetStates, seen: Seen) -> None:
        """Add one batch. Raises `TaskError` for shapes that differ."""
        _add_errors(self._average, states, self.name, seen, squared=True)

    def conclude(self, states: SetStates) -> Numbers:
        """The root; NaN for a total weight of 0."""
        return Numbers({self.name: value(math.sqrt(self._average.mean(states)), "min")})


class MAE:
    """Mean absolute error of predictions (n, …) for labels of the same shape; arguments as of `MSE`."""

    def __init__(self, *, name: str = "mae", interval: IntervalOf = usual_interval) -> None:
        self.name = name
        self._interval = interval
        self._average = Average()

    def states(self, extent: Extent) -> SetStates:
        """The identity of every state."""
        del extent  # sums do not depend on it
        return self._average.states()

    def add(self, states: SetStates, seen: Seen) -> None:
        """Add one batch. Raises `TaskError` for shapes that differ."""
        _add_errors(self._average, states, self.name, seen, squared=False)

    def conclude(self, states: SetStates) -> Numbers:
        """The mean absolute error; NaN for a total weight of 0."""
        interval = self._average.interval(states, self._interval)
        return Numbers({self.name: value(self._average.mean(states), "min", interval)})


def _add_errors(average: Average, states: SetStates, metric: str, seen: Seen, *, squared: bool) -> None:
    pairs = values(metric, seen)
    with np.errstate(all="ignore"):  # what is not finite, or overflows, shows in the result
        errors = pairs.predicted.astype(np.float64) - pairs.actual.astype(np.float64)
        errors = np.square(errors) if squared else np.abs(errors)
    average.add(states, errors, pairs.weights, alone=pairs.alone)
