"""Pair labels with predictions, position by position. Imports numpy only.

The metric's constructor says how labels are written. Shapes alone do not show it: a batch of two examples with two
classes could be read in several ways.
"""

from dataclasses import replace
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.metric import EvalBatch
from sidecar.evaluation.metrics.positions import Positions, as_numbers, counting, without_trailing_ones

Labels = Literal["index", "one_hot", "binary"]
"""Ways to write labels.

index: The number of the class, (n, …), for predictions (n, …, classes).
one_hot: 1 at the class and 0 elsewhere, (n, …, classes), in the shape of the predictions.
binary: 0 or 1, (n, …), in the shape of the predictions, which are one probability or score each.
"""

_REMEDY: Final = "give labels='index', 'one_hot' or 'binary', as the labels are written"
_OF_CLASSES: Final = (
    "; for predictions that are classes, write Mean(lambda y, predictions: y == predictions, name='accuracy')"
)


def check_labels(metric: str, labels: str, allowed: tuple[str, ...] = get_args(Labels)) -> None:
    """Raise `TaskError` unless `labels` is one of the allowed ways to write labels."""
    if labels not in allowed:
        raise TaskError(f"metric {metric!r}: labels={labels!r} must be one of {', '.join(map(repr, allowed))}")


def values(metric: str, batch: EvalBatch) -> Positions:
    """Pair each label with one prediction; (n, 1) counts as (n,). Raises `TaskError` if the shapes differ otherwise."""
    y = without_trailing_ones(as_numbers(metric, "labels", batch.y))
    predictions = without_trailing_ones(as_numbers(metric, "predictions", batch.predictions))
    if y.shape != predictions.shape or not y.ndim:
        raise TaskError(
            f"metric {metric!r}: labels {batch.y.shape} and predictions {batch.predictions.shape} must have the same "
            f"shape: let the model return one value for each label"
        )
    return counting(metric, batch.weights, y.shape, y, predictions, examples=batch.examples)


def zeros_and_ones(metric: str, batch: EvalBatch) -> Positions:
    """Pair each label of 0 or 1, as bool, with one score. Raises `TaskError` for other labels."""
    pairs = values(metric, batch)
    wrong = pairs.actual[(pairs.actual != 0) & (pairs.actual != 1)]
    if wrong.size:
        positive = "y > 0" if wrong[0] < 0 else f"y == {wrong.max():g}"
        raise TaskError(
            f"metric {metric!r}: binary labels must be 0 or 1, found {wrong[0]}: write {positive} in the data"
        )
    return replace(pairs, arrays=(pairs.actual == 1, pairs.predicted))


def classes(metric: str, batch: EvalBatch, labels: Labels) -> Positions:
    """Pair each label, as a number, with the scores of all classes; `labels` is not "binary".

    Raises `TaskError` if shapes do not match, if a label is not the number of a class, or if a row is not one-hot.
    """
    y = as_numbers(metric, "labels", batch.y)
    scores = as_numbers(metric, "predictions", batch.predictions)
    if labels == "index" and y.ndim == scores.ndim > 1 and y.shape[-1] == 1:
        y = y[..., 0]
    expected = scores.shape if labels == "one_hot" else scores.shape[:-1]
    if y.shape != expected or scores.ndim < 2 or scores.shape[-1] < 2:  # noqa: PLR2004 - (n, classes), 2 or more
        raise TaskError(
            f"metric {metric!r}: labels {batch.y.shape} and predictions {batch.predictions.shape} do not match "
            f"labels={labels!r} with predictions (n, …, classes): {_REMEDY}"
            + (_OF_CLASSES if y.shape == scores.shape and {y.dtype.kind, scores.dtype.kind} <= {*"iub"} else "")
        )
    pairs = counting(metric, batch.weights, scores.shape[:-1], y, scores, examples=batch.examples)
    if labels == "one_hot":
        return replace(pairs, arrays=(_of_one_hot(metric, pairs.actual), pairs.predicted))
    return replace(pairs, arrays=(_index(metric, pairs.actual, scores.shape[-1]), pairs.predicted))


def has_nan(scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a bool for each position (m,): whether one of its scores (m, …) is NaN."""
    is_nan: NDArray[np.bool_] = np.isnan(scores).any(axis=tuple(range(1, scores.ndim)))
    return is_nan


def _index(metric: str, labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    wrong = labels[~((labels >= 0) & (labels < count) & (labels == np.trunc(labels)))]
    if wrong.size:
        raise TaskError(
            f"metric {metric!r}: labels must be whole numbers from 0 to {count - 1}, as predictions have {count} "
            f"classes, found {wrong[0]}: give positions without class the weight 0"
            + (", such as a step that returns (y.clip(0), predictions, y >= 0)" if wrong[0] < 0 else "")
            + ("; if classes count from 1, write y - 1 in the data" if wrong[0] == count else "")
        )
    return labels.astype(np.int64)


def _of_one_hot(metric: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    right = ((labels == 0) | (labels == 1)).all(axis=-1) & (np.count_nonzero(labels, axis=-1) == 1)
    if not right.all():
        row = np.array2string(labels[~right][0], threshold=10, separator=", ")
        raise TaskError(f"metric {metric!r}: one-hot labels must hold one 1 and otherwise 0, found {row}: {_REMEDY}")
    return np.asarray(labels.argmax(axis=-1), np.int64)
