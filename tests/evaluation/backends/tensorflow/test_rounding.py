"""Tell sums that differ by rounding from sums that differ."""

import numpy as np
import pytest

from sidecar.evaluation.backends.tensorflow.rounding import TOLERANCE, is_near, is_rounded_sum, tolerance_of

PARTS = [np.array([value], np.float32) for value in (1e8, 1.0, -1e8, 3.0)]


def test_a_sum_in_any_order_is_a_rounded_sum():
    """Accept what float32 makes of it, one value after the other."""
    assert is_rounded_sum(PARTS[0] + PARTS[1] + PARTS[2] + PARTS[3], PARTS)
    assert is_rounded_sum(np.array([4.0], np.float32), PARTS)


def test_another_number_is_no_rounded_sum():
    """Refuse a difference that no order of additions makes."""
    assert not is_rounded_sum(np.array([1000.0], np.float32), PARTS)
    ones = [np.ones(1, np.float32)] * 4
    assert not is_rounded_sum(np.array([4.001], np.float32), ones)


def test_integers_are_exact():
    """Allow no difference at all."""
    parts = [np.array([2**40]), np.array([1])]
    assert is_rounded_sum(np.array([2**40 + 1]), parts)
    assert not is_rounded_sum(np.array([2**40]), parts)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_equal_to_themselves_only(value):
    """Compare NaN with NaN as equal."""
    found = np.array([value, 1.0])
    assert is_near(found, found)
    assert not is_near(found, np.array([0.0, 1.0]))


def test_values_are_near_relative_to_the_largest():
    """Let a small value next to a large one differ by more of itself."""
    assert is_near(np.array([1.0, 1000.0]), np.array([1.0 + 500 * TOLERANCE, 1000.0]))
    assert not is_near(np.array([1.0]), np.array([1.0 + 2 * TOLERANCE]))


def test_coarse_types_have_a_larger_tolerance():
    """Take the coarsest type of all."""
    assert tolerance_of("float32", "float64") == TOLERANCE
    assert tolerance_of("float32", "bfloat16") > tolerance_of("float16") > TOLERANCE
