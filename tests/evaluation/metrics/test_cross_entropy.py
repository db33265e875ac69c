"""Compute the loss of a classifier from probabilities and logits of any size."""

import math

import numpy as np
import pytest
from sklearn.metrics import log_loss

from sidecar.metrics import LogLoss

NAN = math.nan


def clipped(predictions):
    """As scikit-learn keeps probabilities from 0 and 1, before it looks at them itself in float64."""
    eps = np.finfo(predictions.dtype).eps
    return np.clip(predictions.astype(np.float64), eps, 1 - eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_probabilities_of_0_and_1_are_kept_finite(number, dtype):
    """A certain error costs the logarithm of the dtype's epsilon, a certain truth next to nothing."""
    y, p = np.array([0, 1, 1]), np.array([[1, 0], [1, 0], [0.25, 0.75]], dtype)
    wanted = log_loss(y, clipped(p)) if dtype == "float32" else log_loss(y, p)
    assert number(LogLoss(), y, p) == pytest.approx(wanted, rel=1e-12)
    assert number(LogLoss("binary"), y, p[:, 1]) == pytest.approx(wanted, rel=1e-12)
    assert number(LogLoss(), y[1:2], p[1:2]) == pytest.approx(-math.log(np.finfo(dtype).eps), rel=1e-12)


def test_short_floats_are_probabilities_within_their_rounding(numerals, number):
    """Sums over classes are as far from 1 as the dtype rounds."""
    for dtype, tolerance in (("float16", 1e-2), ("float32", 1e-5)):
        found = number(LogLoss(), numerals.y, numerals.predictions.astype(dtype))
        assert found == pytest.approx(log_loss(numerals.y, numerals.predictions), rel=tolerance)


def test_hard_integer_predictions_are_probabilities(number):
    """0 and 1 of any dtype."""
    assert number(LogLoss(), [0, 1], np.eye(2, dtype=int)) == pytest.approx(0, abs=1e-15)
    assert number(LogLoss("binary"), [0, 1], np.array([False, True])) == pytest.approx(0, abs=1e-15)


def test_large_logits_do_not_overflow(number):
    """The loss of a logit grows as it does, without an end at epsilon."""
    assert number(LogLoss(from_logits=True), [0, 1], [[1e4, 0], [1e4, 0]]) == 5e3
    assert number(LogLoss("binary", from_logits=True), [1, 0, 1], [1e4, 1e4, -2e4]) == 1e4


@pytest.mark.parametrize("metric", [LogLoss("binary"), LogLoss("binary", from_logits=True)])
def test_nan_of_one_probability_is_nan(number, metric):
    """Without a warning of numpy's."""
    assert math.isnan(number(metric, [0, 1], [0.0, NAN]))
    assert math.isfinite(number(metric, [0, 1], [0.0, NAN], [1, 0]))
    assert math.isnan(number(metric, [0, 1], [0.0, 0.5], [0, 0]))


def test_infinite_logits_are_as_their_limit_or_nan(number):
    """Infinitely sure of the truth costs nothing; two infinite scores beside each other say nothing."""
    inf = math.inf
    assert number(LogLoss("binary", from_logits=True), [1, 0], [inf, -inf]) == 0
    assert number(LogLoss("binary", from_logits=True), [1], [-inf]) == inf
    assert number(LogLoss(from_logits=True), [1], [[-inf, 0.0]]) == 0
    assert number(LogLoss(from_logits=True), [0], [[-inf, 0.0]]) == inf
    assert math.isnan(number(LogLoss(from_logits=True), [0], [[inf, inf]]))
