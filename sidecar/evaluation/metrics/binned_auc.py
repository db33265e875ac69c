"""Compute areas under curves from a histogram of scores, in constant memory. Imports numpy only."""

import numpy as np

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.curves import average_precision, binary_scores, check_positive, roc_auc
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.pairs import has_nan
from sidecar.evaluation.metrics.tally import Tally
from sidecar.evaluation.states import SetStates


class BinnedAUC:
    """Measure the area under the ROC curve and the average precision of scores that are rounded down to bins.

    Both are exact for the rounded scores. The ROC-AUC differs from that of the original scores by at most half of the
    share of (positive, negative) pairs that fall into the same bin. The results are NaN as in `AUC`. There is no
    interval.

    Args:
        positive: See `AUC`; labels and scores may have further positions, (n, …).
        bins: Number of equal parts of the range from 0 to 1.
        from_logits: Whether scores are logits. Then the metric applies the sigmoid.
        name: Suffix of the numbers, which are `roc_<name>` and `pr_<name>`.
    """

    def __init__(
        self,
        positive: int | None = None,
        *,
        bins: int = 1000,
        from_logits: bool = False,
        name: str = "binned_auc",
    ) -> None:
        check_positive(name, positive)
        if isinstance(bins, bool) or not isinstance(bins, int) or bins < 2:  # noqa: PLR2004 - one bin ranks nothing
            raise TaskError(f"metric {name!r}: BinnedAUC(bins={bins!r}) must be a number from 2")
        self.name = name
        self._positive, self._bins, self._from_logits = positive, bins, from_logits
        self._tally = Tally((2, bins))

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states: weights of negatives and of positives by bin."""
        del info  # counts do not depend on it
        return self._tally.states()

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if labels or shapes do not match, or if scores are outside 0 to 1."""
        pairs = binary_scores(self.name, batch, self._positive)
        scores = pairs.predicted.astype(np.float64)
        if self._from_logits:
            with np.errstate(over="ignore"):  # the sigmoid of a number far below 0 is 0
                scores = 1 / (1 + np.exp(-scores))
        wrong = scores[(scores < 0) | (scores > 1)]
        if wrong.size:
            raise TaskError(
                f"metric {self.name!r}: scores must be from 0 to 1, found {wrong[0]:g}: give from_logits=True if the "
                f"model returns logits"
            )
        unknown = has_nan(scores)
        bins = np.minimum(np.where(unknown, 0, scores) * self._bins, self._bins - 1).astype(np.int64)
        self._tally.add(states, np.where(unknown, -1, pairs.actual * self._bins + bins), pairs.weights)

    def compute(self, states: SetStates) -> MetricResult:
        """Return `roc_binned_auc` and `pr_binned_auc`."""
        negatives, positives = self._tally.totals(states)[:, ::-1]
        return MetricResult(
            {
                f"roc_{self.name}": value(roc_auc(positives, negatives), "max"),
                f"pr_{self.name}": value(average_precision(positives, negatives), "max"),
            }
        )
