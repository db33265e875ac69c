"""Make normal intervals from sums over examples."""

import math

import numpy as np
import pytest

from sidecar.evaluation.intervals import normal
from sidecar.metrics import MAE, MSE, R2, RMSE


@pytest.mark.parametrize("metric", [MSE(), MAE()])
def test_intervals_are_the_normal_ones(diabetes, measure, metric):
    """Give one to one unweighted error per example; a mask leaves fewer of them."""
    errors = np.abs(diabetes.predictions - diabetes.y) ** (2 if metric.name == "mse" else 1)
    kept = np.arange(len(errors)) % 4 > 0
    for weights, own in ((None, errors), (kept, errors[kept])):
        found = measure(metric, diabetes.y, diabetes.predictions, weights).values[metric.name]
        wanted = normal(math.fsum(own), math.fsum(own * own), len(own))
        assert (found.lower, found.upper) == pytest.approx(wanted, rel=1e-12)
        assert found.goal == "min"
    pairs = diabetes.y.reshape(-1, 2), diabetes.predictions.reshape(-1, 2)
    for arrays in ((diabetes.y, diabetes.predictions, diabetes.weights), pairs):
        assert measure(metric, *arrays).values[metric.name].lower is None


@pytest.mark.parametrize(("metric", "goal"), [(RMSE(), "min"), (R2(), "max")])
def test_others_have_none(diabetes, measure, metric, goal):
    """A root or a quotient of means is no mean."""
    found = measure(metric, diabetes.y, diabetes.predictions).values[metric.name]
    assert (found.goal, found.lower, found.upper) == (goal, None, None)
