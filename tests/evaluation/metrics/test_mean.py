"""Average a function of labels and predictions."""

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.metrics import EvalBatch, EvalSetInfo, Mean, Sample, usual_interval


def test_mean_of_a_function_of_labels_and_predictions(diabetes, number):
    """Weighted as numpy does."""
    metric = Mean(np.minimum, name="least")
    each = np.minimum(diabetes.y, diabetes.predictions)
    assert number(metric, diabetes.y, diabetes.predictions) == pytest.approx(each.mean(), rel=1e-12)
    wanted = np.average(each, weights=diabetes.weights.astype(float))
    assert number(metric, diabetes.y, diabetes.predictions, diabetes.weights) == pytest.approx(wanted, rel=1e-12)


def test_parameters_get_what_their_names_say(diabetes, number):
    """The order of torchmetrics is (preds, target), with which a relative error would be another number."""
    y, predictions = diabetes.y + 30.0, diabetes.predictions
    right = (np.abs(y - predictions) / y).mean()

    def relative_error(preds, target):
        return np.abs(preds - target) / target

    for function in (relative_error, lambda y, p: relative_error(p, y), lambda a, b: relative_error(b, a)):
        assert number(Mean(function), y, predictions) == pytest.approx(right, rel=1e-12)


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


def test_rows_that_are_not_examples_have_no_interval():
    """Such as the nodes of graphs: those of one graph are not independent."""
    metric = Mean()
    for examples, has_interval in ((None, True), (40, True), (20, False), (80, False)):
        states = metric.states(EvalSetInfo(examples, Shard(0, 1)))
        metric.add(states, EvalBatch(np.zeros(40), np.arange(40.0), examples=examples))
        assert (metric.compute(states).values["mean"].lower is not None) == has_interval


def test_another_interval_is_an_argument(measure):
    """It is told sums of single values."""
    told = []

    def interval(sample):
        told.append(sample)
        return usual_interval(sample)

    measure(Mean(interval=interval), np.zeros(3), [1.0, 2.0, 0.0], [1, 1, 0])
    assert told == [Sample(count=2, total=3.0, squares=5.0, binary=0, cubes=9.0)]
    measure(Mean(interval=interval), np.zeros(0), np.zeros(0))
    assert len(told) == 1


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


def test_a_function_must_be_one():
    """A name alone is none."""
    with pytest.raises(TaskError, match=r"'mean': Mean .*'mae'"):
        Mean("mae")
