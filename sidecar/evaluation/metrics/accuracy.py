"""Measure how often the first guess of a model is right, or one of its first k guesses. Imports numpy only."""

import math

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.intervals import Interval
from sidecar.evaluation.metrics.clusters import (
    add_alone,
    add_clusters,
    alone_states,
    are_alone,
    cluster_interval,
    cluster_states,
)
from sidecar.evaluation.metrics.decisions import UNDECIDED, decisions
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.pairs import Labels, check_labels, classes, has_nan
from sidecar.evaluation.metrics.positions import Positions
from sidecar.evaluation.metrics.sample import IntervalOf, Sample, usual_interval
from sidecar.evaluation.metrics.tally import Tally
from sidecar.evaluation.states import SetStates


class _Proportion:
    """Sum the weights of wrong positions and those of right positions, and divide them once. A subclass decides."""

    def __init__(self, name: str, interval: IntervalOf) -> None:
        self.name, self._interval = name, interval
        self._tally = Tally((2,))

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        return self._tally.states() | alone_states(info) | cluster_states(info)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the proportion; NaN for a total weight of 0, and if a position was unknown."""
        wrong, right = self._tally.totals(states).tolist()
        number = right / (wrong + right) if wrong + right else math.nan
        return MetricResult({self.name: value(number, "max", self._interval_of(states, wrong, right))})

    def _add(
        self,
        states: SetStates,
        right: NDArray[np.bool_],
        unknown: NDArray[np.bool_],
        batch: EvalBatch,
        pairs: Positions,
    ) -> None:
        """Add the positions (m,) of a batch, which are right, wrong or unknown."""
        self._tally.add(states, np.where(unknown, -1, right.astype(np.int64)), pairs.weights, pairs.examples)
        add_alone(states, len(right), pairs.examples, one_per_example=pairs.one_per_example)
        add_clusters(states, batch, right.astype(np.float64), pairs.weights, pairs.examples)

    def _interval_of(self, states: SetStates, wrong: float, right: float) -> Interval:
        """Return the interval of the proportion; with weights, several values for one example, or groups: their own."""
        if math.isnan(right):
            return None, None
        if not self._tally.is_counted(states) or not are_alone(states):
            usual = self._interval is usual_interval
            return cluster_interval(states, is_proportion=True) if usual else (None, None)
        count = int(wrong + right)
        return self._interval(Sample(count, right, right, count)) if count else (None, None)


class Accuracy(_Proportion):
    """Measure the share of the weight that is classified correctly.

    Among equal scores the first class wins, as in numpy and Keras. A NaN among the scores of a position that counts
    makes the result NaN, because a broken model differs from a model that errs.

    Args:
        labels: "index": numbers of classes (n, …), for scores (n, …, classes). "one_hot": (n, …, classes).
            "binary": 0 or 1 (n, …), for one probability each; a probability above `threshold` means 1.
        threshold: Threshold for binary labels, such as 0 for logits. None: 0.5, for probabilities only.
        name: Name of the metric and of its number.
        interval: Function that makes the 95 % interval. Used if values have no weights, and there is one for each
            independent example; with a function of one's own there is no interval else.
    """

    def __init__(
        self,
        labels: Labels = "index",
        *,
        threshold: float | None = None,
        name: str = "accuracy",
        interval: IntervalOf = usual_interval,
    ) -> None:
        check_labels(name, labels)
        super().__init__(name, interval)
        self._labels, self._threshold = labels, threshold

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if labels and shapes do not match `labels`."""
        decided = decisions(self.name, batch, self._labels, self._threshold)
        right, unknown = decided.predicted == decided.actual, decided.predicted == UNDECIDED
        self._add(states, right, unknown, batch, decided.pairs)


class TopK(_Proportion):
    """Measure the share of the weight whose class is among the k largest scores.

    Among equal scores the class with the larger number ranks first, as in scikit-learn's `top_k_accuracy_score`. A NaN
    among the scores of a position that counts makes the result NaN.

    Args:
        k: Number of scores that are considered.
        labels: "index" or "one_hot", see `Accuracy`.
        name: Name of the metric and of its number; None: `top_5_accuracy` for a k of 5.
        interval: See `Accuracy`.
    """

    def __init__(
        self,
        k: int,
        labels: Labels = "index",
        *,
        name: str | None = None,
        interval: IntervalOf = usual_interval,
    ) -> None:
        super().__init__(f"top_{k}_accuracy" if name is None else name, interval)
        check_labels(self.name, labels, ("index", "one_hot"))
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise TaskError(f"metric {self.name!r}: TopK(k={k!r}) must be a number from 1")
        self._k, self._labels = k, labels

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if labels or shapes do not match, or if there are fewer classes than k."""
        pairs = classes(self.name, batch, self._labels)
        count = pairs.predicted.shape[-1]
        if count < self._k:
            raise TaskError(f"metric {self.name!r}: TopK(k={self._k}) needs at least {self._k} classes, found {count}")
        score = np.take_along_axis(pairs.predicted, pairs.actual[:, np.newaxis], axis=-1)
        is_later = np.arange(count) > pairs.actual[:, np.newaxis]
        before = (pairs.predicted > score) | ((pairs.predicted == score) & is_later)
        right = np.count_nonzero(before, axis=-1) < self._k
        self._add(states, right, has_nan(pairs.predicted), batch, pairs)
