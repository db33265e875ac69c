"""Measure whether the probabilities of a classifier are those with which it is right. Imports numpy only."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.intervals import wilson
from sidecar.evaluation.metrics.average import Average
from sidecar.evaluation.metrics.log_loss import cross_entropies
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.pairs import Labels, check_labels, has_nan
from sidecar.evaluation.metrics.positions import Positions
from sidecar.evaluation.metrics.tally import Tally
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum, named, within
from sidecar.protocol.records import Value

_BRIER = "brier"
_CONFIDENCES = "confidences"
_NAME = "calibration"
_MOST_BINS = 50


class Calibration:
    """Measure the Brier score, the expected calibration error, and how often the model is right by its confidence.

    The confidence of a prediction is its largest probability, and it is right if that class is the label; for binary
    labels it is the probability of 1, and it is right if the label is 1. Predictions are divided by their confidence
    into bins of equal width.

    Numbers: `brier` is the mean of Σ (p - y)² over the classes, or of (p - y)² for binary labels (G. W. Brier, Monthly
    Weather Review 78 (1950) 1-3). `ece` is the mean of |right - confidence| over bins (C. Guo et al.,
    arXiv:1706.04599), which is too large for few examples, even if the model is calibrated. `calibration_error` is the
    root of the mean of (right - confidence)² over bins without that bias (A. Kumar et al., arXiv:1909.10155, section
    5); data with weights have none. By class, which is the bin: `reliability` and `confidence`.

    Args:
        labels: See `Accuracy`.
        from_logits: Whether predictions are logits.
        bins: The number of bins, from 2 to 50.
        name: Beginning of the names of the numbers, with `_`, unless it is the default.
    """

    def __init__(
        self, labels: Labels = "index", *, from_logits: bool = False, bins: int = 15, name: str = _NAME
    ) -> None:
        check_labels(name, labels)
        if isinstance(bins, bool) or not isinstance(bins, int) or not 2 <= bins <= _MOST_BINS:  # noqa: PLR2004 - one bin
            raise TaskError(f"metric {name!r}: Calibration(bins={bins!r}) must be a number from 2 to {_MOST_BINS}")
        self.name, self._prefix = name, "" if name == _NAME else f"{name}_"
        self._labels, self._from_logits, self._bins = labels, from_logits, bins
        self._average, self._tally = Average(), Tally((2, bins))

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states: of the Brier score, and the weights of wrong and right predictions by bin."""
        states = self._tally.states() | {_CONFIDENCES: ExactSum((self._bins,), "float64")}
        return named(_BRIER, self._average.states(info)) | states

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` as `LogLoss.add` does."""
        _, pairs = cross_entropies(self.name, batch, self._labels, from_logits=self._from_logits)
        scores = self._probabilities(pairs)
        if self._labels == "binary":
            confidences, right = scores, pairs.actual.astype(np.int64)
            errors = np.square(scores - right)
        else:
            truth = np.arange(scores.shape[-1]) == pairs.actual[:, np.newaxis]
            errors = np.square(scores - truth).sum(axis=-1)
            confidences, right = scores.max(axis=-1), (scores.argmax(axis=-1) == pairs.actual).astype(np.int64)
        self._average.add_batch(within(states, _BRIER), batch, errors, pairs)
        unknown = np.isnan(confidences)
        bins = np.clip(np.where(unknown, 0, confidences) * self._bins, 0, self._bins - 1).astype(np.int64)
        self._tally.add(states, np.where(unknown, -1, right * self._bins + bins), pairs.weights, pairs.examples)
        weighted = np.where(unknown, 0, confidences * pairs.weights)
        exact_sum(states, _CONFIDENCES).add_at(bins, weighted, pairs.examples)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the numbers; NaN for a total weight of 0, and if a prediction was NaN."""
        brier = within(states, _BRIER)
        wrong, right = self._tally.totals(states)
        sizes, confidences = wrong + right, exact_sum(states, _CONFIDENCES).round()
        total = math.fsum(sizes.tolist())
        is_known = total > 0
        error = math.fsum(np.abs(right - confidences).tolist()) / total if is_known else math.nan
        numbers = {
            "brier": value(self._average.mean(brier), "min", self._average.interval(brier)),
            "ece": value(error, "min"),
        }
        if self._tally.is_counted(states):
            numbers["calibration_error"] = value(_debiased(right, confidences, sizes), "min")
        return MetricResult(
            {f"{self._prefix}{name}": number for name, number in numbers.items()},
            self._by_bin(right, confidences, sizes, is_counted=self._tally.is_counted(states)) if is_known else {},
        )

    def _probabilities(self, pairs: Positions) -> NDArray[np.float64]:
        scores = pairs.predicted.astype(np.float64)
        with np.errstate(all="ignore"):  # the sums count NaN
            if not self._from_logits:
                return np.where(has_nan(scores)[:, np.newaxis], np.nan, scores) if scores.ndim > 1 else scores
            if self._labels == "binary":
                return 1 / (1 + np.exp(-scores))
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=-1, keepdims=True), np.float64)

    def _by_bin(
        self,
        right: NDArray[np.float64],
        confidences: NDArray[np.float64],
        sizes: NDArray[np.float64],
        *,
        is_counted: bool,
    ) -> dict[str, Mapping[str, Value]]:
        reliability, confidence = dict[str, Value](), dict[str, Value]()
        for number in np.flatnonzero(sizes).tolist():
            name = f"{number / self._bins:.2g}-{(number + 1) / self._bins:.2g}"
            interval = wilson(int(right[number]), int(sizes[number])) if is_counted else (None, None)
            reliability[name] = value(float(right[number] / sizes[number]), "none", interval)
            confidence[name] = value(float(confidences[number] / sizes[number]), "none")
        return {f"{self._prefix}reliability": reliability, f"{self._prefix}confidence": confidence}


def _debiased(right: NDArray[np.float64], confidences: NDArray[np.float64], sizes: NDArray[np.float64]) -> float:
    """Return the root of Σ n (r - c)² / N less its bias Σ n r (1 - r) / (n - 1) / N; 0 if that is negative.

    Bins with a single prediction say nothing about their variance, and are left out.
    """
    if np.isnan(sizes).any():
        return math.nan
    kept = sizes > 1
    counts = sizes[kept]
    if not counts.size:
        return math.nan
    shares, means = right[kept] / counts, confidences[kept] / counts
    parts = counts * (np.square(shares - means) - shares * (1 - shares) / (counts - 1))
    return math.sqrt(max(math.fsum(parts.tolist()) / math.fsum(counts.tolist()), 0.0))
