"""Compare log losses with those of scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.metrics import log_loss

from sidecar.errors import TaskError
from sidecar.evaluation.intervals import normal
from sidecar.metrics import LogLoss, Perplexity

NAN = math.nan


def test_log_loss_is_that_of_scikit_learn(numerals, number):
    """Unweighted and weighted, from probabilities and from logits, of numbers and one-hot, to 1e-12."""
    one_hot, logits = np.eye(10)[numerals.y], np.log(numerals.predictions) + 3
    for weights in (None, numerals.weights):
        wanted = pytest.approx(log_loss(numerals.y, numerals.predictions, sample_weight=weights), rel=1e-12)
        assert number(LogLoss(), numerals.y, numerals.predictions, weights) == wanted
        assert number(LogLoss("one_hot"), one_hot, numerals.predictions, weights) == wanted
        assert number(LogLoss(from_logits=True), numerals.y, logits, weights) == wanted


def test_binary_log_loss_is_that_of_scikit_learn(numerals, number):
    """One probability, or its logit."""
    y, p = numerals.y % 2, numerals.predictions[:, 1::2].sum(axis=1)
    for weights in (None, numerals.weights):
        wanted = pytest.approx(log_loss(y, p, sample_weight=weights), rel=1e-12)
        assert number(LogLoss("binary"), y, p, weights) == wanted
        assert number(LogLoss("binary"), y[:, None], p[:, None], weights) == wanted
    logits = np.log(p) - np.log1p(-p)
    assert number(LogLoss("binary", from_logits=True), y, logits) == pytest.approx(log_loss(y, p), rel=1e-9)


def test_interval_is_that_of_skewed_values(numerals, measure):
    """Give one to one unweighted loss per example."""
    each = -np.log(numerals.predictions[np.arange(397), numerals.y])
    found = measure(LogLoss(), numerals.y, numerals.predictions).values["log_loss"]
    wanted = normal(math.fsum(each), math.fsum(each * each), 397, math.fsum(each**3))
    assert (found.lower, found.upper) == pytest.approx(wanted, rel=1e-12)
    assert found.goal == "min"


def test_perplexity_is_weighted_by_tokens(numerals, number, measure):
    """Not by sequences: a long one counts more; weights of tokens need not be 0 or 1."""
    y, p = numerals.y[:390].reshape(30, 13).copy(), numerals.predictions[:390].reshape(30, 13, 10).copy()
    kept = np.arange(13) < (np.arange(30) % 13)[:, None]
    wanted = math.exp(log_loss(y[kept], p[kept], labels=range(10)))
    y[~kept], p[~kept] = -100, NAN
    assert number(Perplexity(), y, p, kept) == pytest.approx(wanted, rel=1e-12)
    assert number(Perplexity(from_logits=True), y, np.log(p), kept) == pytest.approx(wanted, rel=1e-12)
    weights = kept * np.linspace(0.5, 2, 13, dtype=np.float32)
    wanted = math.exp(log_loss(y[kept], p[kept], labels=range(10), sample_weight=weights[kept]))
    assert number(Perplexity(), y, p, weights) == pytest.approx(wanted, rel=1e-12)
    found = measure(Perplexity(), y, p, weights).values["perplexity"]
    assert found.goal == "min"
    assert found.lower < wanted < found.upper


def test_perplexity_beyond_all_numbers_is_infinite(number):
    """A perplexity beyond the largest number is infinite and raises no exception."""
    assert number(Perplexity(from_logits=True), [1], [[1e4, 0]]) == math.inf


@pytest.mark.parametrize(
    ("metric", "y"),
    [
        *((metric, [0, 1]) for metric in (LogLoss(), Perplexity(), LogLoss(from_logits=True))),
        (LogLoss("one_hot"), np.eye(2)),
    ],
)
def test_nan_and_no_weight_are_nan(number, metric, y):
    """NaN counts only where there is weight."""
    p = [[0.5, 0.5], [NAN, 0.5]]
    assert math.isnan(number(metric, y, p))
    assert number(metric, y, p, [1.0, 0.0]) == pytest.approx(2 if metric.name == "perplexity" else math.log(2))
    assert math.isnan(number(metric, y, p, [0.0, 0.0]))


@pytest.mark.parametrize(
    ("metric", "y", "predictions", "told"),
    [
        (LogLoss(), [0, 1], [[2.0, -1.0], [0.5, 0.5]], r"found (2|-1)\b.*from_logits=True"),
        (LogLoss(), [0, 1], [[0.5, 0.5], [0.5, 0.25]], r"sum to 1\b.*0\.75.*from_logits=True"),
        (LogLoss("binary"), [0, 1], [0.5, 1.5], r"from 0 to 1.*1\.5"),
        (LogLoss("binary"), [0, 1], [-0.5, 1.0], r"from 0 to 1.*-0\.5"),
        (LogLoss("binary"), [0, 2], [0.5, 0.5], "binary labels .*found 2"),
        (Perplexity(), [[0], [2]], np.full((2, 1, 2), 0.5), "'perplexity': labels .*found 2"),
    ],
)
def test_mistakes_are_told_in_one_sentence(number, metric, y, predictions, told):
    """Logits that are taken for probabilities above all."""
    with pytest.raises(TaskError, match=told):
        number(metric, y, predictions)


def test_wrong_arguments_are_told_at_once():
    """A perplexity is of classes."""
    with pytest.raises(TaskError, match=r"'perplexity'.*labels='binary'.*'one_hot'$"):
        Perplexity("binary")
    with pytest.raises(TaskError, match=r"'log_loss'.*labels='sparse'"):
        LogLoss("sparse")


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
