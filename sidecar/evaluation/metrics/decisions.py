"""Decide for the class with the largest score, or by a threshold. Imports numpy only."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.metric import EvalBatch
from sidecar.evaluation.metrics.pairs import Labels, classes, has_nan, zeros_and_ones
from sidecar.evaluation.metrics.positions import Positions

UNDECIDED: Final = -1
"""Stands for the class where a score is NaN."""

_USUAL_THRESHOLD: Final = 0.5  # for probabilities
_ROUNDING: Final = 1e-5  # by which a probability that was rounded may be beyond 0 or 1


@dataclass(frozen=True, slots=True)
class Decided:
    """Hold the decisions at the m positions of a batch that count."""

    pairs: Positions  # the labels and predictions
    actual: NDArray[np.int64]  # numbers of the classes (m,)
    predicted: NDArray[np.int64]  # numbers of the classes, or `UNDECIDED` (m,)
    classes: int  # number of classes


def decisions(metric: str, batch: EvalBatch, labels: Labels, threshold: float | None) -> Decided:
    """Return the class with the largest score, the first among equals as in numpy; binary: 1 above the threshold.

    Raises `TaskError` as `classes` and `zeros_and_ones` do, and without a threshold for scores that are no
    probabilities: those above 0.5 would be a plausible wrong number.
    """
    if labels == "binary":
        pairs, count = zeros_and_ones(metric, batch), 2
        if threshold is None:
            _require_probabilities(metric, pairs.predicted)
        decided = pairs.predicted > (_USUAL_THRESHOLD if threshold is None else threshold)
    else:
        pairs = classes(metric, batch, labels)
        count = pairs.predicted.shape[-1]
        decided = pairs.predicted.argmax(axis=-1)
    predicted = np.where(has_nan(pairs.predicted), UNDECIDED, decided).astype(np.int64)
    return Decided(pairs, pairs.actual.astype(np.int64), predicted, count)


def _require_probabilities(metric: str, scores: NDArray[Any]) -> None:
    wrong = scores[(scores < -_ROUNDING) | (scores > 1 + _ROUNDING)]
    if wrong.size:
        raise TaskError(
            f"metric {metric!r}: scores must be probabilities from 0 to 1, found {wrong[0]:g}: give threshold=0 if the "
            f"model returns logits"
        )
