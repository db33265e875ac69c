"""Labels and predictions that belong together, position by position. Imports numpy only.

Which axis is what is told by the metric's constructor, never guessed: a batch of two examples with two classes looks
like many other things.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.metric import EvalBatch
from sidecar.evaluation.metrics.positions import as_numbers, counting, without_trailing_ones

Labels = Literal["index", "one_hot", "binary"]
"""How labels are written.

index: The number of the class, (n, …) next to predictions (n, …, classes).
one_hot: 1 at the class and 0 elsewhere, (n, …, classes) as the predictions.
binary: 0 or 1, (n, …) as the predictions, which are one probability or score each.
"""

_REMEDY: Final = "labels='index', 'one_hot' or 'binary' says how they are written"


@dataclass(frozen=True, slots=True)
class Pairs:
    """The m positions of a batch that count.

    Args:
        actual: Numbers of the classes, or values (m,).
        predicted: Scores of the classes (m, classes), or values (m,).
        weights: float32 (m,), above 0.
        places: Number of each among all positions of the batch (m,).
        one_per_example: Whether each is the only one of its example.
    """

    actual: NDArray[Any]
    predicted: NDArray[Any]
    weights: NDArray[np.float32]
    places: NDArray[np.intp]
    one_per_example: bool


def check_labels(metric: str, labels: str, allowed: tuple[str, ...] = get_args(Labels)) -> None:
    """Raise `TaskError` unless labels can be written so."""
    if labels not in allowed:
        raise TaskError(f"metric {metric!r}: labels={labels!r} must be one of {', '.join(map(repr, allowed))}")


def values(metric: str, batch: EvalBatch) -> Pairs:
    """Pair each label with one prediction; (n, 1) is (n,). Raises `TaskError` for shapes that differ otherwise."""
    y = without_trailing_ones(as_numbers(metric, "labels", batch.y))
    predictions = without_trailing_ones(as_numbers(metric, "predictions", batch.predictions))
    if y.shape != predictions.shape or not y.ndim:
        raise TaskError(
            f"metric {metric!r}: labels {batch.y.shape} and predictions {batch.predictions.shape} must have one shape: "
            f"let the model return one value for each label"
        )
    positions = counting(metric, batch.weights, y.shape, y, predictions)
    labels, predicted = positions.arrays
    return Pairs(labels, predicted, positions.weights, positions.places, positions.one_per_example)


def zeros_and_ones(metric: str, batch: EvalBatch) -> Pairs:
    """Pair each label of 0 or 1, as bool, with one score. Raises `TaskError` for other labels."""
    pairs = values(metric, batch)
    wrong = pairs.actual[(pairs.actual != 0) & (pairs.actual != 1)]
    if wrong.size:
        raise TaskError(f"metric {metric!r}: binary labels must be 0 or 1, found {wrong[0]}")
    return Pairs(pairs.actual == 1, pairs.predicted, pairs.weights, pairs.places, pairs.one_per_example)


def classes(metric: str, batch: EvalBatch, labels: Labels) -> Pairs:
    """Pair each label, as a number, with the scores of all classes; `labels` is not "binary".

    Raises `TaskError` for shapes that do not fit, for numbers of classes that do not exist, and for rows that are not
    one-hot.
    """
    y = as_numbers(metric, "labels", batch.y)
    scores = as_numbers(metric, "predictions", batch.predictions)
    if labels == "index" and y.ndim == scores.ndim > 1 and y.shape[-1] == 1:
        y = y[..., 0]
    expected = scores.shape if labels == "one_hot" else scores.shape[:-1]
    if y.shape != expected or scores.ndim < 2 or scores.shape[-1] < 2:  # noqa: PLR2004 - (n, classes), 2 or more
        raise TaskError(
            f"metric {metric!r}: labels {batch.y.shape} and predictions {batch.predictions.shape} do not fit to "
            f"labels={labels!r}, predictions (n, …, classes): {_REMEDY}"
        )
    positions = counting(metric, batch.weights, scores.shape[:-1], y, scores)
    counted, counted_scores = positions.arrays
    actual = _of_one_hot(metric, counted) if labels == "one_hot" else _index(metric, counted, scores.shape[-1])
    return Pairs(actual, counted_scores, positions.weights, positions.places, positions.one_per_example)


def has_nan(scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which positions (m,) have no ranking, since one of their scores (m, …) is NaN."""
    is_nan: NDArray[np.bool_] = np.isnan(scores).any(axis=tuple(range(1, scores.ndim)))
    return is_nan


def _index(metric: str, labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    wrong = labels[~((labels >= 0) & (labels < count) & (labels == np.trunc(labels)))]
    if wrong.size:
        raise TaskError(
            f"metric {metric!r}: labels must be whole numbers from 0 to {count - 1}, as predictions have {count} "
            f"classes, found {wrong[0]}: give what is no class the weight 0"
        )
    return labels.astype(np.int64)


def _of_one_hot(metric: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    right = ((labels == 0) | (labels == 1)).all(axis=-1) & (np.count_nonzero(labels, axis=-1) == 1)
    if not right.all():
        row = np.array2string(labels[~right][0], threshold=10, separator=", ")
        raise TaskError(f"metric {metric!r}: one-hot labels must have one 1 and else 0, found {row}: {_REMEDY}")
    return np.asarray(labels.argmax(axis=-1), np.int64)
