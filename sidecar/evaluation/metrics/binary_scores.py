"""Reduce a batch to one score for each example and whether it is positive, as curves need it. Imports numpy only."""

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.metric import EvalBatch
from sidecar.evaluation.metrics.pairs import Pairs, classes, zeros_and_ones


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
    scores = pairs.predicted[:, positive]
    return Pairs(
        actual=pairs.actual == positive,
        predicted=scores,
        weights=pairs.weights,
        places=pairs.places,
        one_per_example=pairs.one_per_example,
    )
