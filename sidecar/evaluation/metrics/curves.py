"""Compute areas under ROC and precision-recall curves from the weights at each threshold. Imports numpy only.

`binary_scores` reduces a batch to one score for each example. Both areas take the weights of positives and of negatives
by score, from the highest score to the lowest. Equal scores share one entry, so the order of examples with the same
score does not matter.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.metric import EvalBatch
from sidecar.evaluation.metrics.pairs import Pairs, classes, zeros_and_ones

Floats = NDArray[np.float64]


def check_positive(metric: str, positive: int | None) -> None:
    """Raise `TaskError` unless `positive` can be the number of a class, or is None."""
    if positive is not None and (isinstance(positive, bool) or not isinstance(positive, int) or positive < 0):
        raise TaskError(f"metric {metric!r}: positive={positive!r} must be the number of a class, or None")


def binary_scores(metric: str, batch: EvalBatch, positive: int | None) -> Pairs:
    """Return labels as bool, and scores (m,): the predictions themselves, or the scores of the class `positive`.

    Raises `TaskError` if labels or shapes do not match.
    """
    if positive is None:
        if batch.predictions.ndim == batch.y.ndim + 1 and batch.predictions.shape[-1] > 1:
            raise TaskError(
                f"metric {metric!r}: predictions {batch.predictions.shape} are of several classes: name the positive "
                f"class with positive=…"
            )
        return zeros_and_ones(metric, batch)
    pairs = classes(metric, batch, "index")
    count = pairs.predicted.shape[-1]
    if positive >= count:
        raise TaskError(f"metric {metric!r}: there is no class positive={positive}, predictions have {count}")
    return replace(pairs, actual=pairs.actual == positive, predicted=pairs.predicted[:, positive])


def roc_auc(positives: Floats, negatives: Floats) -> float:
    """Return how often a positive scores higher than a negative; a tie counts one half. NaN if a class has no weight.

    J. A. Hanley and B. J. McNeil, "The meaning and use of the area under a receiver operating characteristic (ROC)
    curve", Radiology 143 (1982) 29-36. The result equals the trapezoids of scikit-learn's `roc_auc_score`.
    """
    pairs = math.fsum(positives.tolist()) * math.fsum(negatives.tolist())
    higher = np.cumsum(positives) - positives / 2
    return math.fsum((higher * negatives).tolist()) / pairs if pairs else math.nan


def average_precision(positives: Floats, negatives: Floats) -> float:
    """Return the mean precision over the positives; NaN if they have no weight.

    The formula is Σ (R_k - R_k-1) P_k without interpolation, as scikit-learn's `average_precision_score`.
    """
    total = math.fsum(positives.tolist())
    true = np.cumsum(positives)
    steps = positives != 0  # elsewhere recall does not change; NaN differs from 0
    parts = positives[steps] * (true[steps] / (true + np.cumsum(negatives))[steps])
    return math.fsum(parts.tolist()) / total if total else math.nan
