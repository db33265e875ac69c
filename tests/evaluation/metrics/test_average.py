"""Compute a weighted mean from exact states."""

import math

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.intervals import normal, wilson
from sidecar.metrics import Mean


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
        ([0.0, 1, 1, 0, 1] * 4, None, normal(12, 12, 20, 12)),
        ([0, 1, 1, 0, 1] * 4, None, normal(12, 12, 20, 12)),
        ([0.0, 1, 1, 0, 1] * 3 + [0.5] * 4, None, (None, None)),  # 19 are too few
        ([0.0] * 20, None, (None, None)),
        ([3.5] * 20, (0, 7), (None, None)),
        ([0.5] + [1.0] * 19, (0, 1), (normal(19.5, 19.25, 20, 19.125)[0], 1)),
        ([0.0, 1, 1, 0, 1] * 4, (0, 2), normal(12, 12, 20, 12)),
        ([-1.0] + [1] * 20, (-1, 1), (normal(19, 21, 21, 19)[0], 1)),
        ([0.0, 1, 2, 9] * 5, None, normal(60, 430, 20, 3690)),
        ([7], None, normal(7, 49, 1)),
    ):
        found = measure(Mean(goal="max", bounds=bounds), np.zeros(len(values)), values).values["mean"]
        least, largest = bounds or (-math.inf, math.inf)
        lower, upper = (None, None) if wanted[0] is None else (max(wanted[0], least), min(wanted[1], largest))
        assert (found.lower, found.upper) == (lower, upper), values
        assert found.goal == "max"
    assert measure(Mean(), [0], [[1.0, 0.0]]).values["mean"].lower is None  # a single example


def test_values_beyond_the_bounds_are_refused(number):
    """Bounds that do not hold would make an interval too narrow."""
    with pytest.raises(TaskError, match=r"1\.5.*\(0, 1\)"):
        number(Mean(bounds=(0, 1)), np.zeros(2), [0.0, 1.5])
    for wrong in ((1, 0), (0,), (0, 0)):
        with pytest.raises(TaskError, match="bounds"):
            Mean(bounds=wrong)


@pytest.mark.parametrize("values", [[1.0, math.nan], [math.inf, -math.inf]])
def test_what_is_no_number_shows(number, measure, values):
    """NaN, also of infinities of both signs."""
    assert math.isnan(number(Mean(), np.zeros(2), values))
    assert measure(Mean(), np.zeros(2), values).values["mean"].lower is None
    assert math.isnan(number(Mean(), np.zeros(2), [1.0, 1.0], [0, 0]))
