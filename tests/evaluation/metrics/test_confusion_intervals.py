"""Intervals of precision, recall and F1 agree with derivatives by small steps, and with closed forms."""

import math

import numpy as np
import pytest

from sidecar.evaluation.intervals import Z, wilson
from sidecar.evaluation.metrics.confusion_intervals import Intervals

MADE = np.random.default_rng(7)
MATRIX = MADE.multinomial(900, np.array([[8, 1, 1], [2, 12, 3], [1, 1, 5.0]]).ravel() / 34).reshape(3, 3).astype(float)


def ratios(matrix):
    right, predicted, actual = np.diagonal(matrix), matrix.sum(axis=0), matrix.sum(axis=1)
    return {"precision": right / predicted, "recall": right / actual, "f1": 2 * right / (predicted + actual)}


def mean(matrix, name, average):
    weights = np.ones(len(matrix)) if average == "macro" else matrix.sum(axis=1)
    return float((weights * ratios(matrix)[name]).sum() / weights.sum())


def by_small_steps(matrix, name, average):
    """The interval on the scale of log-odds, whose error is that of the derivatives by each cell's share."""
    step, number = 1e-4, mean(matrix, name, average)
    gradient = np.zeros(matrix.shape)
    for cell in np.ndindex(matrix.shape):
        more, less = matrix.copy(), matrix.copy()
        more[cell] += step
        less[cell] -= step
        gradient[cell] = (mean(more, name, average) - mean(less, name, average)) / (2 * step)
    total = matrix.sum()
    variance = (matrix * gradient**2).sum() - (matrix * gradient).sum() ** 2 / total
    odds, reach = math.log(number / (1 - number)), Z * math.sqrt(variance) / (number * (1 - number))
    return tuple(1 / (1 + math.exp(-(odds + sign * reach))) for sign in (-1, 1))


@pytest.mark.parametrize(("name", "average"), [("f1", "macro"), ("f1", "weighted"), ("precision", "weighted")])
def test_averages_have_the_errors_of_their_derivatives(name, average):
    """All cells are parts of one multinomial distribution."""
    intervals = Intervals.of(MATRIX, are_independent=True)
    assert getattr(intervals, average)(name) == pytest.approx(by_small_steps(MATRIX, name, average), abs=1e-8)


@pytest.mark.parametrize("name", ["precision", "recall"])
def test_means_of_independent_classes_are_united_with_their_own_interval(name):
    """The longer end counts on either side."""
    intervals = Intervals.of(MATRIX, are_independent=True)
    lower, upper = intervals.macro(name)
    low, high = by_small_steps(MATRIX, name, "macro")
    assert lower <= low + 1e-9
    assert upper >= high - 1e-9
    found, ends = ratios(MATRIX)[name], intervals.by_class(name)
    below, above = (math.sqrt(sum((a - b[side]) ** 2 for a, b in zip(found, ends, strict=True))) / 3 for side in (0, 1))
    assert lower == pytest.approx(min(low, found.mean() - below), abs=1e-8)
    assert upper == pytest.approx(max(high, found.mean() + above), abs=1e-8)


def test_closed_forms():
    """Shares of right examples and of classes are proportions, and F1 of a class is a rising function of one."""
    intervals = Intervals.of(MATRIX, are_independent=True)
    right = int(np.trace(MATRIX))
    assert intervals.micro() == intervals.weighted("recall") == wilson(right, 900)
    predicted, actual = MATRIX.sum(axis=0), MATRIX.sum(axis=1)
    assert intervals.by_class("precision")[1] == wilson(int(MATRIX[1, 1]), int(predicted[1]))
    union = wilson(int(MATRIX[1, 1]), int(predicted[1] + actual[1] - MATRIX[1, 1]))
    assert intervals.by_class("f1")[1] == pytest.approx(tuple(2 * end / (1 + end) for end in union))


def test_a_model_without_errors():
    """Its precision and recall have intervals; its averages of F1 say nothing about their spread."""
    intervals = Intervals.of(np.diag([50.0, 70.0]), are_independent=True)
    lower, upper = intervals.macro("precision")
    assert (0.9 < lower < 1, upper) == (True, 1.0)
    assert intervals.macro("f1") == (None, None)
    assert intervals.by_class("f1")[0] == pytest.approx((2 * wilson(50, 50)[0] / (1 + wilson(50, 50)[0]), 1.0))


@pytest.mark.parametrize(
    ("matrix", "are_independent"),
    [
        (np.array([[19.0, 0], [2, 50]]), True),
        (MATRIX, False),
        (np.full((2, 2), np.nan), True),
        (np.zeros((2, 2)), True),
    ],
)
def test_averages_without_an_interval(matrix, are_independent):
    """A class has fewer than 20 labels, examples are not independent, or there is no number."""
    intervals = Intervals.of(matrix, are_independent=are_independent)
    assert intervals.macro("f1") == intervals.macro("recall") == intervals.weighted("precision") == (None, None)


def test_a_class_that_is_never_predicted_has_no_interval():
    """It has no precision."""
    intervals = Intervals.of(np.array([[30.0, 0], [5, 0]]), are_independent=True)
    assert intervals.by_class("precision")[1] == (None, None)
    assert intervals.by_class("recall")[1][0] == 0.0
