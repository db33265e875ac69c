"""Compute exact areas under curves; the score of every example stays in memory until the end. Imports numpy only."""

import math
from typing import Final

import numpy as np

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.curves import average_precision, binary_scores, check_positive, roc_auc
from sidecar.evaluation.metrics.differences import is_exact_as_float
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.states import PerExampleValues, SetStates

_MAX_EXAMPLES: Final = 10_000_000
"""The limit by default. The states of so many examples take 160 MB on every rank, and several times that while they
are summed over the ranks."""


class AUC:
    """Measure the area under the ROC curve and the average precision, with a threshold at every score that occurs.

    The metric needs one score per example, and data whose number of examples is known. Each example takes 16 bytes on
    every rank. The results are NaN if there is nothing to rank: the ROC needs both classes, the average precision needs
    a positive. A NaN score that counts makes both NaN. There is no interval.

    Args:
        positive: None: labels are 0 or 1 (n,) with one score each; logits and probabilities give the same result. A
            number: labels are numbers of classes (n,) with scores (n, classes), and this class is the positive one.
        max_examples: Limit of examples, which protects the memory: ten million examples take 160 MB.
        name: Suffix of the numbers, which are `roc_<name>` and `pr_<name>`.
    """

    def __init__(self, positive: int | None = None, *, max_examples: int = _MAX_EXAMPLES, name: str = "auc") -> None:
        check_positive(name, positive)
        self.name = name
        self._positive, self._max_examples = positive, max_examples

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states. Raises `TaskError` if there are too many examples, or if their number is unknown."""
        if info.examples is None:
            raise TaskError(
                f"metric {self.name!r}: an exact AUC needs the number of examples, which is unknown for a set "
                f"that divides itself or is divided by file: use BinnedAUC"
            )
        if info.examples > self._max_examples:
            raise TaskError(
                f"metric {self.name!r}: an exact AUC of {info.examples} examples takes "
                f"{16 * info.examples / 1e6:.0f} MB on every rank: use BinnedAUC, or allow it with max_examples=…"
            )
        # A weight below 0 belongs to a negative example. An example of weight 0 does not count.
        return {"scores": PerExampleValues(info.examples), "weights": PerExampleValues(info.examples)}

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if labels or shapes do not match."""
        pairs = binary_scores(self.name, batch, self._positive)
        if not pairs.one_per_example:
            raise TaskError(
                f"metric {self.name!r}: an exact AUC needs one score per example, found predictions "
                f"{batch.predictions.shape}: use BinnedAUC"
            )
        inexact = pairs.predicted[~is_exact_as_float(pairs.predicted)]
        if inexact.size:
            raise TaskError(
                f"metric {self.name!r}: scores are ranked as float64, which does not hold {inexact[0]}, so that "
                f"different scores would be equal: return them without their common offset, or as floats"
            )
        assert batch.first is not None, "the places of examples are known if their number is"
        for name, values in (
            ("scores", pairs.predicted),
            ("weights", np.where(pairs.actual, pairs.weights, -pairs.weights)),
        ):
            state = states[name]
            assert isinstance(state, PerExampleValues), f"{name} has no places"
            column = np.zeros(len(batch.y), np.float64)
            column[pairs.places] = values
            state.put(batch.first, column)

    def compute(self, states: SetStates) -> MetricResult:
        """Return `roc_auc` and `pr_auc`."""
        scores, weights = states["scores"], states["weights"]
        assert isinstance(scores, PerExampleValues), "scores have places"
        assert isinstance(weights, PerExampleValues), "weights have places"
        roc, precision = _areas(scores.values(), weights.values())
        return MetricResult({f"roc_{self.name}": value(roc, "max"), f"pr_{self.name}": value(precision, "max")})


def _areas(scores: np.typing.NDArray[np.float64], weights: np.typing.NDArray[np.float64]) -> tuple[float, float]:
    """Return the area under the ROC curve and the average precision. Weights of negative examples are below 0."""
    scores, weights = scores[weights != 0], weights[weights != 0]
    if not scores.size or np.isnan(scores).any():
        return math.nan, math.nan
    order = np.argsort(scores, kind="stable")[::-1]
    scores, weights = scores[order], weights[order]
    starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    positives = np.add.reduceat(np.maximum(weights, 0), starts)
    negatives = np.add.reduceat(np.maximum(-weights, 0), starts)
    return roc_auc(positives, negatives), average_precision(positives, negatives)
