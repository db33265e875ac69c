"""Compute the share of the labels' variance that predictions explain."""

import math

import numpy as np
import pytest
from sklearn.metrics import r2_score

from sidecar.metrics import R2


@pytest.mark.parametrize("offset", [1e6, -1e9])
@pytest.mark.parametrize("weighted", [False, True])
def test_r2_keeps_what_a_large_mean_would_swallow(diabetes, number, offset, weighted):
    """Labels far from 0: the sum of squares and the square of the sum agree in nearly all their digits."""
    y, p = diabetes.y + offset, diabetes.predictions + offset
    weights = diabetes.weights if weighted else None
    assert number(R2(), y, p, weights) == pytest.approx(r2_score(y, p, sample_weight=weights), rel=1e-12)


def test_r2_of_predictions_worse_than_the_mean_is_negative(diabetes, number):
    """As far as it may go; a perfect one is 1."""
    assert number(R2(), diabetes.y, -diabetes.y) == pytest.approx(r2_score(diabetes.y, -diabetes.y), rel=1e-12)
    assert number(R2(), diabetes.y, diabetes.y) == 1
    assert number(R2(), [0.0, 1.0], [0.0, math.inf]) == -math.inf
    assert number(R2(), [0.0, 1.0], [0.0, 1e200]) == -math.inf
    assert number(R2(), [0.0, 1e-150], [0.0, 1e150]) == -math.inf


@pytest.mark.parametrize(("y", "weights"), [([2.0, 2.0], None), ([1.0], None), ([1.0, 2.0], [0.0, 0.5])])
def test_r2_of_equal_labels_is_nan(number, y, weights):
    """There is nothing to explain: scikit-learn says 0 or 1 by convention, or warns."""
    assert math.isnan(number(R2(), y, np.array(y) + 1, weights))
