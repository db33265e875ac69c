"""Select the positions that count by their weights."""

import re

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.metrics import Mean


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [
        ([1, 3], 5 / 4),
        ([True, False], 0.5),
        (np.array([1, 3], np.float16), 5 / 4),
        (np.array([[1], [3]]), 5 / 4),
        (np.array([[1, 1, 0, 0], [0, 0, 0, 2]]) / 2, 6 / 4),
        ([2.0**-149, 2.0**-149], 1.0),
        ([1e30, 1e30], 1.0),
    ],
)
def test_weights_of_examples_or_positions(number, weights, wanted):
    """Take any kind of number as float32; the smallest count like the largest."""
    values = np.array([[0, 0.5, 0.75, 0.75], [0, 0.5, 2.0, 2.5]]) if np.shape(weights) == (2, 4) else [0.5, 1.5]
    wanted = (0.5 * (0 + 0.5) + 1 * 2.5) / 2 if np.shape(weights) == (2, 4) else wanted
    assert number(Mean(), np.zeros(2), values, weights) == wanted


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([1, -1], r"'mean': weights .*1e\+30.*found -1\b"),
        ([1, np.nan], "found nan"),
        ([1, np.inf], "found inf"),
        ([1, 1e31], "found 1e.31"),
        ([1, 1e300], "found inf"),
        (["a", "b"], "weights .*dtype <U"),
        ([2.0], r"weights \(1,\).*values \(2,\)"),
        (np.ones((2, 3)), r"weights \(2, 3\).*values \(2,\).*example, \(2,\)"),
    ],
)
def test_weights_that_are_none(number, weights, told):
    """Negative, not finite, or of another shape."""
    with pytest.raises(TaskError, match=told):
        number(Mean(), np.zeros(2), np.ones(2), weights)


@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (2, 3, 2)])
def test_weights_of_other_positions(number, shape):
    """A sequence of three needs one weight, or three."""
    with pytest.raises(TaskError, match=rf"weights {re.escape(str(shape))}.*\(2,\).*\(2, 3\)"):
        number(Mean(), np.zeros(2), np.ones((2, 3)), np.ones(shape))
