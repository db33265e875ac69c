"""Pair each label with its own prediction."""

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.metrics import MAE, Accuracy, Mean


@pytest.mark.parametrize("function", [lambda y, p: y == p, lambda y, p: np.abs(y - p), lambda y, p: (y - p)[..., None]])
def test_each_label_is_compared_with_its_own_prediction(number, function):
    """Numpy makes (n, n) of (n,) and (n, 1), as CatBoost returns its classes."""
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


@pytest.mark.parametrize(
    ("metric", "y", "p", "line"),
    [
        (Accuracy(), np.array(["a", "b"]), np.eye(2), "np.searchsorted(classes, y)"),
        (MAE(), np.array(["2026-01-01"], "datetime64[s]"), np.ones(1), "y.astype(np.int64)"),
        (Accuracy(), np.array([1, 2]), np.eye(2), "write y - 1"),
        (Accuracy(), np.array([1, 2]), np.array([1, 2]), "Mean(lambda y, predictions: y == predictions"),
        (Accuracy(labels="binary", threshold=0.0), np.array([-1, 1]), np.ones(2), "write y > 0"),
        (Accuracy(labels="binary", threshold=0.0), np.array([1, 2]), np.ones(2), "write y == 2"),
    ],
)
def test_labels_written_otherwise_get_the_line_to_write(number, metric, y, p, line):
    """Texts, times, numbers from 1, signs, and predictions that are classes have a line each."""
    with pytest.raises(TaskError) as caught:
        number(metric, y, p)
    assert line in str(caught.value)
