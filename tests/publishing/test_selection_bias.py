"""The best of many noisy numbers is too good; those around it tell by how much."""

import math

import numpy as np
import pytest

from sidecar.publishing.selection_bias import by_neighbours


@pytest.mark.parametrize(
    ("shape", "luck", "left"), [("flat", 0.019, 0.001), ("rises", 0.007, 0.003), ("overfits", 0.016, 0.002)]
)
def test_the_luck_of_the_best_one_is_left_out(shape, luck, left):
    """In 300 simulated runs of 50 checkpoints, on 1,000 examples."""
    random, steps = np.random.default_rng(1), np.arange(50)
    truth = {"flat": 0.9 + 0 * steps, "rises": 0.85 + 0.002 * steps, "overfits": 0.9 - 0.00005 * (steps - 25) ** 2}[
        shape
    ]
    errors = []
    for numbers in random.binomial(1000, truth, (300, 50)) / 1000:
        at = int(numbers.argmax())
        errors.append((numbers[at] - truth[at], by_neighbours(numbers.tolist(), at) - truth[at]))
    before, after = np.mean(errors, axis=0)
    assert before > luck
    assert abs(after) < left


def test_few_neighbours_tell_nothing():
    """Numbers that are not finite are left out, and a line is met exactly."""
    assert by_neighbours([0.1, 0.2, 0.9, 0.4], 2) is None
    assert by_neighbours([0.1, math.nan, 0.3, 0.4, 9.0, 0.6, math.inf, 0.8], 4) == pytest.approx(0.5)
    assert by_neighbours([0.1] * 4 + [0.2], 4) == pytest.approx(0.1)
    assert by_neighbours([1.7e308, -1.7e308] * 3, 3) is None
