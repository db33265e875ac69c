"""Compare errors of regression with those of scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score, root_mean_squared_error

from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import clustered
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo
from sidecar.metrics import MAE, MSE, R2, RMSE

NAN = math.nan

THEIRS = [
    (MSE(), mean_squared_error),
    (MAE(), mean_absolute_error),
    (RMSE(), root_mean_squared_error),
    (R2(), r2_score),
]


@pytest.mark.parametrize(("metric", "theirs"), THEIRS)
def test_errors_are_those_of_scikit_learn(diabetes, number, metric, theirs):
    """Unweighted and weighted, to 1e-12; a column is a vector."""
    y, p = diabetes.y, diabetes.predictions
    for weights in (None, diabetes.weights):
        wanted = pytest.approx(theirs(y, p, sample_weight=weights), rel=1e-12)
        assert number(metric, y, p, weights) == wanted
        assert number(metric, y[:, None], p, weights) == number(metric, y, p[:, None], weights) == wanted


@pytest.mark.parametrize(("metric", "theirs"), THEIRS)
def test_float32_and_integers_are_summed_as_float64(diabetes, number, metric, theirs):
    """Their values are taken as they are, and nothing is rounded to float32 again."""
    y, p = diabetes.y.astype(np.int32), diabetes.predictions.astype(np.float32)
    assert number(metric, y, p) == pytest.approx(theirs(y, p.astype(np.float64)), rel=1e-12)


@pytest.mark.parametrize(("metric", "theirs"), THEIRS)
def test_positions_of_sequences_count_one_by_one(diabetes, number, metric, theirs):
    """With a mask as weights, under which anything may stand."""
    y, p = (each[:440].reshape(44, 10).copy() for each in (diabetes.y, diabetes.predictions))
    kept = np.arange(10) < (np.arange(44) % 10)[:, None]
    wanted = theirs(y[kept], p[kept])
    y[~kept], p[~kept] = NAN, math.inf
    assert number(metric, y, p, kept) == pytest.approx(wanted, rel=1e-12)


def test_targets_are_averaged_alike(diabetes, number):
    """Labels (n, d), as scikit-learn's uniform average; an example's weight holds for all of them."""
    y = np.stack([diabetes.y, diabetes.y[::-1]], axis=1)
    p = np.stack([diabetes.predictions, diabetes.predictions], axis=1)
    for metric, theirs in THEIRS[:2]:
        wanted = theirs(y, p, sample_weight=diabetes.weights)
        assert number(metric, y, p, diabetes.weights) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("columns", "noted"), [(1, False), (2, True)])
def test_r2_of_several_columns_is_noted(columns, noted):
    """Their labels count as one set, and scikit-learn takes the mean over columns."""
    y = np.arange(6.0 * columns).reshape(6, columns)
    states = R2().states(EvalSetInfo(6, Shard(0, 1)))
    R2().add(states, EvalBatch(y, y, None, 0, 6))
    assert any("InTurn(sklearn.metrics.r2_score)" in note for note in R2().compute(states).notes) == noted


@pytest.mark.parametrize("metric", [each for each, _ in THEIRS])
def test_nan_and_no_weight_are_nan(number, metric):
    """NaN among labels or predictions counts where there is weight."""
    y, p = [1.0, 2.0, 4.0], [1.0, 3.0, 4.0]
    good = number(metric, y, p)
    for bad in ([*y, NAN], [*p, 1.0]), ([*y, 1.0], [*p, NAN]):
        assert math.isnan(number(metric, *bad))
        assert number(metric, *bad, [1, 1, 1, 0]) == good
    assert math.isnan(number(metric, y, p, [0, 0, 0]))
    assert math.isnan(number(metric, np.zeros(0), np.zeros(0)))


@pytest.mark.parametrize("metric", [MSE(), MAE(), RMSE()])
def test_what_is_beyond_all_numbers_is_infinite(number, metric):
    """Not an exception, and no warning."""
    assert number(metric, [1.0, 0.0], [math.inf, 0.0]) == math.inf
    assert number(metric, [-1.7e308], [1.7e308]) == math.inf


@pytest.mark.parametrize("metric", [each for each, _ in THEIRS])
def test_shapes_must_be_one(number, metric):
    """(n,) beside (n, m) is never broadcast to (n, n)."""
    with pytest.raises(TaskError, match=rf"'{metric.name}'.* \(2,\).*\(2, 3\)"):
        number(metric, np.zeros(2), np.zeros((2, 3)))


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


@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_interval_of_r2_is_that_of_its_ratio(diabetes, measure, is_weighted):
    """The ratio has residuals and distances from the mean label; labels too far from 0 have no interval."""
    weights = diabetes.weights if is_weighted else np.ones(len(diabetes.y))
    mean = np.average(diabetes.y, weights=weights)
    parts = [np.square(diabetes.y - other) * weights for other in (diabetes.predictions, mean)]
    wanted = clustered(*(part.tolist() for part in parts))
    for offset, rel in ((0, 1e-10), (1e6, 1e-3)):
        given = diabetes.y + offset, diabetes.predictions + offset, weights.astype(np.float32)
        found = [measure(R2(), *given, ranks=ranks).values["r2"] for ranks in (1, 2, 3, 5)]
        assert (1 - found[0].upper, 1 - found[0].lower) == pytest.approx(wanted, rel=rel)
        assert all(each == found[0] for each in found)
    far = measure(R2(), diabetes.y + 1e9, diabetes.predictions + 1e9).values["r2"]
    assert (far.lower, measure(R2(), diabetes.y, diabetes.predictions, known=False).values["r2"].lower) == (None, None)


def test_a_label_that_is_the_mean_has_an_error_like_all_others(measure):
    """Its distance from the mean is 0, and it was left out: 63 % of the intervals of balanced labels held the truth."""
    y, errors = np.tile([-1.0, 0.0, 1.0], 100), np.random.default_rng(4).normal(size=300)
    p = y + np.where(y == 0, 2.0, 0.1) * errors
    exactly = measure(R2(), y, p).values["r2"]
    nearly = measure(R2(), y + 1e-6 * (np.arange(300) == 0), p).values["r2"]
    assert (exactly.lower, exactly.upper) == pytest.approx((nearly.lower, nearly.upper), abs=1e-4)
