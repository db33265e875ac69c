"""Decide for one class by the largest score or by a threshold."""

import numpy as np
import pytest

from sidecar.metrics import Accuracy


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_labels_of_any_kind_are_the_same(numerals, number, dtype):
    """Numbers of classes as integers or floats, in a column of their own, or one-hot."""
    expected = number(Accuracy(), numerals.y, numerals.predictions)
    assert number(Accuracy(), numerals.y.astype(dtype), numerals.predictions) == expected
    assert number(Accuracy(), numerals.y.astype(dtype)[:, None], numerals.predictions) == expected
    assert number(Accuracy("one_hot"), np.eye(10, dtype=dtype)[numerals.y], numerals.predictions) == expected


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("column", [False, True])
def test_binary_accuracy_is_by_threshold(number, dtype, column):
    """One probability is a class if it is above the threshold, as in Keras; logits have a threshold of 0."""
    y, p = np.array([True, False, False, False, True]), np.array([0.75, 0.5, 0.5, 0.75, 0.625], dtype)
    p = p[:, None] if column else p
    assert number(Accuracy("binary"), y, p) == 4 / 5
    assert number(Accuracy("binary", threshold=0.7), y, p) == 3 / 5
    assert number(Accuracy("binary", threshold=0), y, p - 0.5) == 4 / 5


def test_bfloat16_is_widened(number):
    """The short floats of accelerators are numbers like others."""
    import ml_dtypes

    p = np.array([[0.25, 0.75], [0.75, 0.25]], ml_dtypes.bfloat16)
    assert number(Accuracy(), [1, 1], p) == 0.5


def test_integer_scores_are_scores(number):
    """A model may count votes."""
    assert number(Accuracy(), [1, 1], np.array([[1, 2], [2, 1]])) == 0.5
    assert number(Accuracy("binary"), [1, 1], np.array([True, False])) == 0.5


def test_of_equal_scores_the_first_class_wins(number):
    """As argmax of numpy and of Keras."""
    assert number(Accuracy(), [0, 0, 1], np.full((3, 2), 0.5)) == 2 / 3
