"""Make normal intervals from sums over examples."""

import math

import numpy as np
import pytest

from sidecar.evaluation.intervals import normal
from sidecar.metrics import MAE, MSE, RMSE


@pytest.mark.parametrize("metric", [MSE(), MAE()])
def test_intervals_are_those_of_skewed_values(diabetes, measure, metric):
    """Give one to one unweighted error per example; a mask leaves fewer of them."""
    errors = np.abs(diabetes.predictions - diabetes.y) ** (2 if metric.name == "mse" else 1)
    kept = np.arange(len(errors)) % 4 > 0
    for weights, own in ((None, errors), (kept, errors[kept])):
        found = measure(metric, diabetes.y, diabetes.predictions, weights).values[metric.name]
        wanted = normal(math.fsum(own), math.fsum(own * own), len(own), math.fsum(own**3))
        assert (found.lower, found.upper) == pytest.approx(wanted, rel=1e-12)
        assert found.goal == "min"


def test_the_interval_of_a_root_is_the_root_of_the_interval(diabetes, measure):
    """The number under the root is the mean squared error."""
    mse, rmse = (measure(metric, diabetes.y, diabetes.predictions).values[metric.name] for metric in (MSE(), RMSE()))
    assert (rmse.lower, rmse.upper) == (math.sqrt(mse.lower), math.sqrt(mse.upper))
