"""Intervals of values that are weighted, several for one example, or of groups of examples."""

import math

import numpy as np
import pytest
import scipy.stats

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import clustered
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo
from sidecar.evaluation.states.group_sums import MOST_GROUPS
from sidecar.metrics import MAE, MSE, RMSE, Accuracy, LogLoss, Mean, Perplexity, TopK


def interval_by_hand(values, weights, numbers):
    """The linearised variance of a weighted mean, with one residual for each group, and Hall's for the skewness."""
    mean = (values * weights).sum() / weights.sum()
    of_groups = [((values - mean) * weights)[numbers == number].sum() for number in np.unique(numbers)]
    sizes = np.array([weights[numbers == number].sum() for number in np.unique(numbers)])
    residuals = np.array(of_groups)[sizes > 0] / weights.sum()
    effective, count = sizes.sum() ** 2 / np.square(sizes).sum(), len(residuals)
    t = scipy.stats.t.ppf(0.975, np.floor(effective + 1e-6) - 1)
    error = np.sqrt(effective / (effective - 1) * np.square(residuals).sum())
    skewness = scipy.stats.skew(residuals, bias=False)
    centred = np.mean(residuals**3) / np.mean(residuals**2) ** 1.5 * np.sqrt(count * (count - 1)) / (count - 2)
    assert abs(skewness - centred) < 0.3  # the residuals add up to 0 only without weights

    def end(quantile):
        inner = 1 + centred * (quantile / np.sqrt(count) - centred / (6 * count))
        return mean - error * np.sqrt(count) * 3 / centred * (np.cbrt(inner) - 1)

    return min(mean - t * error, end(t)), max(mean + t * error, end(-t))


@pytest.fixture
def measured(measure):
    """The only number of a metric, with its interval."""
    return lambda metric, *arrays, **given: measure(metric, *arrays, **given).values[metric.name]


def data(count=200, seed=3):
    random = np.random.default_rng(seed)
    y, predictions = random.normal(size=count), random.normal(size=count)
    weights = random.exponential(size=count).astype(np.float32)
    return y, predictions, weights, random.integers(0, 43, count)


@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("has_groups", [False, True])
def test_the_interval_is_that_of_the_sums_of_groups(measured, has_weights, has_groups):
    """Without groups each example is one of its own."""
    y, predictions, weights, groups = data()
    found = measured(MSE(), y, predictions, weights if has_weights else None, groups=groups if has_groups else None)
    used = weights.astype(float) if has_weights else np.ones(200)
    wanted = interval_by_hand(np.square(y - predictions), used, groups if has_groups else np.arange(200))
    assert (found.lower, found.upper) == pytest.approx(wanted, rel=1e-2 if not (has_weights or has_groups) else 1e-10)


def test_values_of_one_example_are_dependent(measured):
    """Twice the same errors are no more information than once."""
    y, predictions, *_ = data()
    once, twice = (
        measured(MAE(), each[0], each[1])
        for each in ((y, predictions), np.repeat([y, predictions], 2, -1).reshape(2, 200, 2))
    )
    assert once.value == twice.value
    assert (twice.lower, twice.upper) == pytest.approx((once.lower, once.upper), rel=0.01)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "metric",
    [MSE(), MAE(), RMSE(), Mean(lambda y, p: y > p), Mean(lambda y, p: np.abs(y - p)), Accuracy("binary", threshold=0)],
)
def test_the_bits_do_not_depend_on_the_workers(measured, metric, ranks):
    """With weights and groups."""
    y, predictions, weights, groups = data()
    y = (y > 0).astype(int) if isinstance(metric, Accuracy) else y
    one = measured(metric, y, predictions, weights, groups=groups)
    assert one.lower < one.value < one.upper
    assert measured(metric, y, predictions, weights, groups=groups, ranks=ranks, batch=7) == one


@pytest.mark.parametrize("metric", [Accuracy(), TopK(2), LogLoss(), Perplexity()])
def test_sequences_have_intervals(measured, numerals, metric):
    """Sequences are the independent parts."""
    y, predictions = numerals.y[:396].reshape(-1, 4), numerals.predictions[:396].reshape(-1, 4, 10)
    found = measured(metric, y, predictions)
    assert found.lower < found.value < found.upper


def test_a_proportion_keeps_within_0_and_1(measured):
    """Also if all examples of all groups are right: then each group counts once."""
    y = np.ones(100, int)
    found = measured(Accuracy("binary", threshold=0), y, y * 1.0, groups=np.arange(100) // 5)
    assert found.upper == 1
    count = 20 * (scipy.stats.norm.ppf(0.975) / scipy.stats.t.ppf(0.975, 19)) ** 2
    assert found.lower == pytest.approx(scipy.stats.beta.ppf(0.025, count, 1), rel=1e-10)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_proportion_has_the_interval_of_its_independent_examples(share):
    """Korn's and Graubard's: that of Clopper and Pearson for the variance of the groups."""
    random = np.random.default_rng(4)
    sizes = random.integers(1, 40, 60)
    right = random.binomial(sizes, share)
    mean, effective = right.sum() / sizes.sum(), sizes.sum() ** 2 / np.square(sizes).sum()
    variance = np.square((right - mean * sizes) / sizes.sum()).sum() * effective / (effective - 1)
    t = scipy.stats.t.ppf(0.975, int(effective) - 1)
    count = mean * (1 - mean) / variance * (scipy.stats.norm.ppf(0.975) / t) ** 2
    hits = mean * count
    wanted = scipy.stats.beta.ppf([0.025, 0.975], [hits, hits + 1], [count - hits + 1, count - hits])
    assert clustered(right.tolist(), sizes.tolist(), is_proportion=True) == pytest.approx(tuple(wanted), rel=1e-10)


@pytest.mark.parametrize(
    ("sizes", "has_one"),
    [([10] * 20, True), ([10] * 19, False), ([5] * 20 + [20] * 20, True), ([5] * 24 + [40] * 16, False)],
)
def test_shares_of_unequal_groups_need_more_of_them(sizes, has_one):
    """Effective ones: 20 of equal sizes, up to 40 of others."""
    interval = clustered([0.8 * size for size in sizes], sizes, is_proportion=True)
    assert (interval != (None, None)) == has_one


@pytest.mark.parametrize(
    ("values", "weights"),
    [([], []), ([1.0], [2.0]), ([1.0, math.nan], [1.0, 1.0]), ([1.0, 1.0], [1.0, 1.0]), ([1.0, 0.0], [1.0, 0.0])],
)
def test_nothing_is_known_of_one_group(values, weights):
    """Nor of sums that are not finite, or are all equal."""
    assert clustered(values, weights) == (None, None)


def test_examples_without_numbers_have_no_interval():
    """A set that divides itself: no worker knows to which group of the others an example belongs."""
    y, predictions, weights, _ = data(8)
    metric = MSE()
    states = metric.states(EvalSetInfo(None, Shard(0, 1)))
    metric.add(states, EvalBatch(y, predictions, weights))
    assert metric.compute(states).values["mse"].lower is None


def test_many_groups_are_united(measured):
    """The state stays small, and the interval hardly changes."""
    y, predictions, weights, _ = data(20_000)
    found = measured(MSE(), y, predictions, weights, batch=5_000)
    wanted = interval_by_hand(np.square(y - predictions), weights.astype(float), np.arange(20_000))
    assert found.upper - found.lower == pytest.approx(wanted[1] - wanted[0], rel=0.15)
    assert MSE().states(EvalSetInfo(20_000, Shard(0, 1)))["groups"].width == 2 * MOST_GROUPS
