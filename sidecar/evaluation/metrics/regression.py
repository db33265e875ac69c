"""Measure how far predicted values are from the labels: MSE, RMSE, MAE. Imports numpy only.

Every value counts: for labels (n, d) the mean is over n·d values, as in scikit-learn's `uniform_average`.
"""

import math

import numpy as np

from sidecar.evaluation.metrics.average import Average, MeanLoss
from sidecar.evaluation.metrics.differences import difference
from sidecar.evaluation.metrics.metric import EvalBatch, MetricResult, value
from sidecar.evaluation.metrics.pairs import values
from sidecar.evaluation.metrics.sample import IntervalOf, usual_interval
from sidecar.evaluation.states import SetStates


class MSE(MeanLoss):
    """Measure the mean squared error of predictions (n, …) for labels of the same shape; NaN if a value is NaN.

    Args:
        name: Name of the metric and of its number.
        interval: Function that makes the 95 % interval. Used if values have no weights and there is one per example.
    """

    def __init__(self, *, name: str = "mse", interval: IntervalOf = usual_interval) -> None:
        super().__init__(name, interval)

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if the shapes differ."""
        _add_errors(self._average, states, self.name, batch, squared=True)


class RMSE(MeanLoss):
    """Measure the root of the mean squared error over all examples; no interval.

    Args:
        name: Name of the metric and of its number.
    """

    def __init__(self, *, name: str = "rmse") -> None:
        super().__init__(name)

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if the shapes differ."""
        _add_errors(self._average, states, self.name, batch, squared=True)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the root; NaN for a total weight of 0."""
        return MetricResult({self.name: value(math.sqrt(self._average.mean(states)), "min")})


class MAE(MeanLoss):
    """Measure the mean absolute error of predictions (n, …) for labels of the same shape. Arguments: see `MSE`."""

    def __init__(self, *, name: str = "mae", interval: IntervalOf = usual_interval) -> None:
        super().__init__(name, interval)

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if the shapes differ."""
        _add_errors(self._average, states, self.name, batch, squared=False)


def _add_errors(average: Average, states: SetStates, metric: str, batch: EvalBatch, *, squared: bool) -> None:
    pairs = values(metric, batch)
    with np.errstate(all="ignore"):  # NaN, infinities and overflows show in the result
        errors = difference(pairs.predicted, pairs.actual)
        errors = np.square(errors) if squared else np.abs(errors)
    average.add(states, errors, pairs.weights, one_per_example=pairs.one_per_example)
