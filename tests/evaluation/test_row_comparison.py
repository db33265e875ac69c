"""Rows differ beyond rounding or not, whatever their type."""

import numpy as np
import pytest

from sidecar.evaluation.row_comparison import few_of, halves_of, is_telling, rows_differ, tolerance_for


def test_one_example_has_no_halves():
    """The first half of more has an odd number of examples."""
    assert halves_of(1) is None
    assert halves_of(4) == (slice(0, 1), slice(1, 4))


@pytest.mark.parametrize("examples", [2, 3, 4, 5, 8, 33, 64])
def test_a_few_examples_of_a_batch_have_other_neighbours_and_places(examples):
    """Those in the middle begin at an odd place, so that pairs are parted; a single example has no parts."""
    (few,) = few_of(examples, 3)
    assert few.start % 2 == 1
    assert few.start < few.stop <= min(examples, few.start + 3)
    first, last = few_of(examples, 0)
    assert (first.start, last.stop) == (0, examples)
    assert first.stop % 2 == 1
    assert few_of(1, 0) is few_of(1, 3) is None


def test_rows_differ_beyond_rounding():
    """Rounding of a float type is no difference; another row, a missing one, or another width is."""
    whole = np.random.default_rng(1).normal(size=(10, 4)).astype(np.float32)
    halves = [[whole[:5] * np.float32(1 + 2e-6)], [whole[5:]]]
    assert not rows_differ([whole], halves)
    assert rows_differ([whole], [[whole[:5] * np.float32(1.01)], [whole[5:]]])
    assert not rows_differ([whole], [[whole[:5] * np.float32(1.01)], [whole[5:]]], tolerance_for(["torch.bfloat16"]))
    assert rows_differ([whole], [[whole[:5]], [whole[:4]]])
    assert rows_differ([whole], [[whole[:5, :3]], [whole[5:, :3]]])
    scaled = whole * np.float32([1e3, 1, 1, 1])
    moved = scaled + np.float32([0, 0.1, 0, 0])
    assert rows_differ([scaled], [[moved[:5]], [moved[5:]]]), "a small column next to a large one"
    assert rows_differ([np.arange(4)], [[np.array([0, 1])], [np.array([2, 2])]]), "integers are equal or not"
    gaps = np.array([np.nan, np.inf, 1.0])
    assert not rows_differ([gaps], [[gaps[:1]], [gaps[1:]]])
    assert is_telling([whole])
    assert not is_telling([np.ones((5, 2))])
