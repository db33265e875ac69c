"""Areas under curves, exact: the score of every example is kept until the end. Imports numpy only."""

import math
from typing import Final

import numpy as np

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.binary_scores import binary_scores, check_positive
from sidecar.evaluation.metrics.curves import average_precision, roc_auc
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.states import PerExampleValues, SetStates

_MAX_EXAMPLES: Final = 10_000_000
"""160 MB of states on every rank, and several times that while they are summed over the ranks."""


class AUC:
    """Area under the ROC curve and average precision, over thresholds at every score that occurs.

    For one score per example, of data whose number of examples is known: 16 bytes for each on every rank. NaN where
    there is nothing to rank: the ROC needs both classes, the average precision a positive. A NaN score that counts
    makes both NaN. No interval.

    Args:
        positive: None: labels are 0 or 1 (n,) next to one score each; logits and probabilities give the same. A number:
            labels are numbers of classes (n,) next to scores (n, classes), and this class is told from all others.
        max_examples: More are refused, as they would fill the memory: 160 MB for ten million.
        name: The numbers are `roc_<name>` and `pr_<name>`.
    """

    def __init__(self, positive: int | None = None, *, max_examples: int = _MAX_EXAMPLES, name: str = "auc") -> None:
        check_positive(name, positive)
        self.name = name
        self._positive, self._max_examples = positive, max_examples

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states. Raises `TaskError` if there are too many examples, or nobody knows how many."""
        if info.examples is None:
            raise TaskError(
                f"metric {self.name!r}: an exact AUC needs to know the number of examples, which a set that "
                f"divides itself, or is divided by file, does not tell: use BinnedAUC"
            )
        if info.examples > self._max_examples:
            raise TaskError(
                f"metric {self.name!r}: an exact AUC of {info.examples} examples takes "
                f"{16 * info.examples / 1e6:.0f} MB on every rank: use BinnedAUC, or allow it with max_examples=…"
            )
        # A weight below 0 is that of a negative, and 0 that of what does not count.
        return {"scores": PerExampleValues(info.examples), "weights": PerExampleValues(info.examples)}

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` for labels and shapes that do not fit."""
        pairs = binary_scores(self.name, batch, self._positive)
        if not pairs.one_per_example:
            raise TaskError(
                f"metric {self.name!r}: an exact AUC needs one score per example, found predictions "
                f"{batch.predictions.shape}: use BinnedAUC"
            )
        assert batch.first is not None, "the places of examples are known where their number is"
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


def _areas(scores: np.typing.NDArray[np.float64], signed: np.typing.NDArray[np.float64]) -> tuple[float, float]:
    scores, signed = scores[signed != 0], signed[signed != 0]
    if not scores.size or np.isnan(scores).any():
        return math.nan, math.nan
    order = np.argsort(scores, kind="stable")[::-1]
    scores, signed = scores[order], signed[order]
    starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    positives = np.add.reduceat(np.maximum(signed, 0), starts)
    negatives = np.add.reduceat(np.maximum(-signed, 0), starts)
    return roc_auc(positives, negatives), average_precision(positives, negatives)
