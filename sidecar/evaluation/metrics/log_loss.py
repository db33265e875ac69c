"""Average the losses of a classifier: log loss, and perplexity, its exponential. Imports numpy only."""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.average import MeanLoss
from sidecar.evaluation.metrics.differences import difference
from sidecar.evaluation.metrics.metric import EvalBatch
from sidecar.evaluation.metrics.pairs import Labels, check_labels, classes, has_nan, zeros_and_ones
from sidecar.evaluation.metrics.positions import Positions
from sidecar.evaluation.metrics.sample import IntervalOf, usual_interval
from sidecar.evaluation.states import SetStates


class LogLoss(MeanLoss):
    """Measure the cross-entropy in nats, Σ w·l / Σ w; NaN if a prediction that counts is NaN.

    Args:
        labels: See `Accuracy`.
        from_logits: Whether predictions are logits. Probabilities are clipped to [eps, 1 - eps] of their dtype as in
            scikit-learn, so that the loss of a zero is finite.
        name: Name of the metric and of its number.
        interval: Function that makes the 95 % interval: see `Accuracy`.
    """

    def __init__(
        self,
        labels: Labels = "index",
        *,
        from_logits: bool = False,
        name: str = "log_loss",
        interval: IntervalOf = usual_interval,
    ) -> None:
        check_labels(name, labels)
        super().__init__(name, interval)
        self._labels, self._from_logits = labels, from_logits

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if labels, shapes or probabilities are not valid."""
        losses, pairs = cross_entropies(self.name, batch, self._labels, from_logits=self._from_logits)
        self._average.add_batch(states, batch, losses, pairs)


class Perplexity(MeanLoss):
    """Measure exp(Σ w·l / Σ w) over all tokens that count, in sequences of any length.

    The interval is exp of that of the mean; tokens of one sequence count as dependent.

    Args:
        labels: "index" for tokens (n, t) with scores (n, t, tokens), or "one_hot".
        from_logits: See `LogLoss`.
        name: Name of the metric and of its number.
    """

    def __init__(self, labels: Labels = "index", *, from_logits: bool = False, name: str = "perplexity") -> None:
        check_labels(name, labels, ("index", "one_hot"))
        super().__init__(name, curve=_exp)
        self._labels, self._from_logits = labels, from_logits

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` as `LogLoss.add` does."""
        losses, pairs = cross_entropies(self.name, batch, self._labels, from_logits=self._from_logits)
        self._average.add_batch(states, batch, losses, pairs)


def _exp(number: float) -> float:
    """Return the exponential, infinite if it exceeds float64."""
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf


Losses = tuple[NDArray[np.float64], Positions]
"""Losses (m,) in nats, and the labels and predictions that they belong to."""

_REMEDY: Final = "give from_logits=True if the model returns logits"


def cross_entropies(metric: str, batch: EvalBatch, labels: Labels, *, from_logits: bool) -> Losses:
    """Return losses in float64.

    Probabilities are clipped to [eps, 1 - eps] as in scikit-learn's `log_loss`, where eps is that of their dtype
    (bfloat16: that of float32). Raises `TaskError` if labels or shapes do not match, or if predictions are not
    probabilities.
    """
    if labels == "binary":
        pairs = zeros_and_ones(metric, batch)
        scores = pairs.predicted.astype(np.float64)
        if from_logits:
            with np.errstate(all="ignore"):  # numpy warns of NaN
                return np.logaddexp(0.0, np.where(pairs.actual, -scores, scores)), pairs  # a positive: log(1 + exp(-z))
        _check(metric, scores, _tolerance(pairs.predicted))
        return _minus_log(np.where(pairs.actual, scores, 1 - scores), _eps(pairs.predicted)), pairs
    pairs = classes(metric, batch, labels)
    if from_logits:
        return _from_logits(pairs.predicted, pairs.actual), pairs
    scores = pairs.predicted.astype(np.float64)
    _check(metric, scores, _tolerance(pairs.predicted))
    _check_sums(metric, scores.sum(axis=-1), _tolerance(pairs.predicted))
    losses = _minus_log(_of_truth(scores, pairs.actual), _eps(pairs.predicted))
    return np.where(has_nan(scores), np.nan, losses), pairs  # one NaN in a row makes its loss NaN, as with logits


def _of_truth(scores: NDArray[np.float64], actual: NDArray[Any]) -> NDArray[np.float64]:
    truth: NDArray[np.float64] = np.take_along_axis(scores, actual[:, np.newaxis], axis=-1)[:, 0]
    return truth


def _from_logits(scores: NDArray[Any], actual: NDArray[Any]) -> NDArray[np.float64]:
    """Return minus log softmax: log Σ exp(z) - z of the label. The largest z is subtracted to prevent overflows."""
    with np.errstate(all="ignore"):  # infinite logits give NaN
        moved = difference(scores, scores.max(axis=-1, keepdims=True))
        losses: NDArray[np.float64] = np.log(np.exp(moved).sum(axis=-1)) - _of_truth(moved, actual)
    return losses


def _minus_log(probabilities: NDArray[np.float64], eps: float) -> NDArray[np.float64]:
    losses: NDArray[np.float64] = -np.log(np.clip(probabilities, eps, 1 - eps))
    return losses


def _eps(predictions: NDArray[Any]) -> float:
    return float(np.finfo(predictions.dtype if predictions.dtype.kind == "f" else np.float64).eps)


def _tolerance(predictions: NDArray[Any]) -> float:
    """Return how far rounding may move a probability from 0 or 1, or a sum from 1; scikit-learn allows the same."""
    return float(np.sqrt(_eps(predictions)))


def _check(metric: str, probabilities: NDArray[np.float64], tolerance: float) -> None:
    wrong = probabilities[(probabilities < -tolerance) | (probabilities > 1 + tolerance)]  # NaN passes
    if wrong.size:
        raise TaskError(f"metric {metric!r}: probabilities must be from 0 to 1, found {wrong[0]:g}: {_REMEDY}")


def _check_sums(metric: str, sums: NDArray[np.float64], tolerance: float) -> None:
    wrong = sums[np.abs(sums - 1) > tolerance]
    if wrong.size:
        raise TaskError(f"metric {metric!r}: probabilities of all classes must sum to 1, found {wrong[0]:g}: {_REMEDY}")
