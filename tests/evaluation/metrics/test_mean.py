import math

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import normal, wilson
from sidecar.metrics import EvalBatch, EvalSetInfo, Mean, Sample, usual_interval


def test_mean_of_a_function_of_labels_and_predictions(diabetes, number):
    """Weighted as numpy does."""
    metric = Mean(np.minimum, name="least")
    each = np.minimum(diabetes.y, diabetes.predictions)
    assert number(metric, diabetes.y, diabetes.predictions) == pytest.approx(each.mean(), rel=1e-12)
    wanted = np.average(each, weights=diabetes.weights.astype(float))
    assert number(metric, diabetes.y, diabetes.predictions, diabetes.weights) == pytest.approx(wanted, rel=1e-12)


def test_mean_of_predictions(diabetes, number):
    """Such as of a model that returns its own loss; its labels are not looked at."""
    p = diabetes.predictions[:, None].astype(np.float32)
    assert number(Mean(), np.array(["?"] * len(p)), p) == pytest.approx(p.astype(float).mean(), rel=1e-12)


def test_positions_count_one_by_one(number):
    """With weights of examples or of positions."""
    values = np.arange(6.0).reshape(2, 3)
    assert number(Mean(), np.zeros(2), values) == 2.5
    assert number(Mean(), np.zeros(2), values, [1, 0]) == 1
    assert number(Mean(), np.zeros(2), values, [[1, 0, 0], [0, 0, 3]]) == 15 / 4
    assert number(Mean(), np.zeros(2), values, [[1], [3]]) == (3 + 3 * 12) / 12


def test_a_sum_loses_nothing(number):
    """The small survive the large, in any order and any batches."""
    values = [1e100, 1.0, -1e100, 1.0]
    assert number(Mean(), np.zeros(4), values) == number(Mean(), np.zeros(4), values[::-1], batch=1) == 0.5


def test_intervals_are_wilsons_where_declared_and_normal_else(measure):
    """Where values are unweighted and one per example. Zeros of a loss do not say that it is at most 1."""
    for values, bounds, wanted in (
        ([False, True], None, wilson(1, 2)),
        ([False] * 20, None, wilson(0, 20)),
        ([0.0, 1, 1, 0, 1], (0, 1), wilson(3, 5)),
        ([0, 1, 1, 0, 1], (0.0, 1.0), wilson(3, 5)),
        ([0.0, 1, 1, 0, 1], None, normal(3, 3, 5)),
        ([0, 1, 1, 0, 1], None, normal(3, 3, 5)),
        ([0.0] * 20, None, (None, None)),
        ([3.5] * 20, (0, 7), (None, None)),
        ([0.5, 1, 1, 0, 1], (0, 1), (normal(3.5, 3.25, 5)[0], 1)),
        ([0.0, 1, 1, 0, 1], (0, 2), (normal(3, 3, 5)[0], normal(3, 3, 5)[1])),
        ([-1.0, 1, 1], (-1, 1), (normal(1, 3, 3)[0], 1)),
        ([0.0, 1, 2], None, normal(3, 5, 3)),
        ([7], None, normal(7, 49, 1)),
    ):
        found = measure(Mean(goal="max", bounds=bounds), np.zeros(len(values)), values).values["mean"]
        least, largest = bounds or (-math.inf, math.inf)
        lower, upper = (None, None) if wanted[0] is None else (max(wanted[0], least), min(wanted[1], largest))
        assert (found.lower, found.upper) == (lower, upper), values
        assert found.goal == "max"
    assert measure(Mean(), [0, 0], [1.0, 0.0], [1, 2]).values["mean"].lower is None
    assert measure(Mean(), [0], [[1.0, 0.0]]).values["mean"].lower is None


def test_rows_that_are_not_examples_have_no_interval():
    """Such as the nodes of graphs: those of one graph are not independent."""
    metric = Mean()
    for examples, has_interval in ((None, True), (4, True), (2, False), (8, False)):
        states = metric.states(EvalSetInfo(examples, Shard(0, 1)))
        metric.add(states, EvalBatch(np.zeros(4), np.arange(4.0), examples=examples))
        assert (metric.compute(states).values["mean"].lower is not None) == has_interval


def test_values_beyond_the_bounds_are_refused(number):
    """Bounds that do not hold would make an interval too narrow."""
    with pytest.raises(TaskError, match=r"1\.5.*\(0, 1\)"):
        number(Mean(bounds=(0, 1)), np.zeros(2), [0.0, 1.5])
    for wrong in ((1, 0), (0,), (0, 0)):
        with pytest.raises(TaskError, match="bounds"):
            Mean(bounds=wrong)


def test_another_interval_is_an_argument(measure):
    """It is told sums of single values."""
    told = []

    def interval(sample):
        told.append(sample)
        return usual_interval(sample)

    measure(Mean(interval=interval), np.zeros(3), [1.0, 2.0, 0.0], [1, 1, 0])
    assert told == [Sample(count=2, total=3.0, squares=5.0, binary=0)]
    measure(Mean(interval=interval), np.zeros(0), np.zeros(0))
    assert len(told) == 1


@pytest.mark.parametrize("values", [[1.0, math.nan], [math.inf, -math.inf]])
def test_what_is_no_number_shows(number, measure, values):
    """NaN, also of infinities of both signs."""
    assert math.isnan(number(Mean(), np.zeros(2), values))
    assert measure(Mean(), np.zeros(2), values).values["mean"].lower is None
    assert math.isnan(number(Mean(), np.zeros(2), [1.0, 1.0], [0, 0]))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (
            lambda y, p: np.mean(y - p),
            r"'mean'.*\b3 examples.*\(\)",
        ),
        (lambda y, p: (y - p)[:2], r"'mean'.*\b3 examples.*\(2,\)"),
        (lambda y, p: [str(each) for each in y - p], "values .*dtype <U"),
        (lambda *_: None, "values .*dtype object"),
    ],
)
def test_what_a_function_must_return(number, function, told):
    """One number per example."""
    with pytest.raises(TaskError, match=told):
        number(Mean(function), np.zeros(3), np.ones(3))


@pytest.mark.parametrize("function", [lambda y, p: y == p, lambda y, p: np.abs(y - p), lambda y, p: (y - p)[..., None]])
def test_each_label_is_compared_with_its_own_prediction(number, function):
    """Of (n,) and (n, 1), as CatBoost returns its classes, numpy makes (n, n)."""
    y, p = np.arange(3), np.arange(3)[:, None]
    with pytest.raises(TaskError, match=r"predictions\[:, 0\]"):
        number(Mean(function), y, p)
    with pytest.raises(TaskError, match=r"y\[:, 0\]"):
        number(Mean(function), p, y)
    assert number(Mean(lambda y, p: y == p[:, 0]), y, p) == 1
    assert number(Mean(lambda y, p: y == p), y, p, batch=1) == 1
    assert number(Mean(lambda _, p: p), y, np.eye(3)) == 1 / 3  # three examples of three values


@pytest.mark.parametrize("kind", [str, object])
def test_texts_are_no_numbers(number, kind):
    """To numpy they are never equal, so the accuracy would be 0. A function may convert them, and all may be wrong."""
    numbers, texts, names = np.array([0, 1, 0]), np.array(["no", "yes", "no"], kind), np.array(["no", "yes"])
    for function in (lambda y, p: y == p, lambda y, p: y != p):
        with pytest.raises(TaskError, match="searchsorted"):
            number(Mean(function), numbers, texts)
        with pytest.raises(TaskError, match=r"texts \(y\)"):
            number(Mean(function), texts, numbers)
    assert number(Mean(lambda y, p: names[y] == p), numbers, texts) == 1
    assert number(Mean(lambda y, p: names[1 - y] == p), numbers, texts) == 0
    assert number(Mean(lambda y, p: [names[a] != b for a, b in zip(y, p, strict=True)]), numbers, texts) == 0
    assert number(Mean(lambda y, p: y == p), texts, texts) == 1


def test_a_function_must_be_one():
    """A name alone is none."""
    with pytest.raises(TaskError, match=r"'mean': Mean .*'mae'"):
        Mean("mae")
