"""Measure how often the first guess of a model is right, or one of its first k guesses. Imports numpy only."""

import math

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.intervals import Interval
from sidecar.evaluation.metrics.clusters import add_clusters, are_independent, cluster_interval, cluster_states
from sidecar.evaluation.metrics.decisions import UNDECIDED, decisions
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.pairs import Labels, Pairs, check_labels, classes, has_nan
from sidecar.evaluation.metrics.sample import IntervalOf, Sample, usual_interval
from sidecar.evaluation.metrics.tally import Tally
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum


class Proportion:
    """Sum the weights of wrong positions and those of right positions, and divide them once."""

    def __init__(self) -> None:
        self._tally = Tally((2,))

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        several = {"several": ExactSum((), "int64")}  # positions that share an example or a group
        return self._tally.states() | several | cluster_states(info)

    def add(
        self, states: SetStates, right: NDArray[np.bool_], unknown: NDArray[np.bool_], batch: EvalBatch, pairs: Pairs
    ) -> None:
        """Add the positions (m,) of a batch, which are right, wrong or unknown."""
        self._tally.add(states, np.where(unknown, -1, right.astype(np.int64)), pairs.weights)
        is_alone = are_independent(states, one_per_example=pairs.one_per_example)
        exact_sum(states, "several").add(np.int64(0 if is_alone else len(right)))
        add_clusters(states, batch, right.astype(np.float64), pairs.weights, pairs.examples)

    def number(self, states: SetStates) -> float:
        """Return the proportion, divided once; NaN for a total weight of 0, and if a position was unknown."""
        wrong, right = self._tally.totals(states).tolist()
        return right / (wrong + right) if wrong + right else math.nan

    def interval(self, states: SetStates, of: IntervalOf) -> Interval:
        """Return the interval of the proportion; with weights, several values for one example, or groups: their own."""
        wrong, right = self._tally.totals(states).tolist()
        if math.isnan(right):
            return None, None
        if not self._tally.is_counted(states) or int(exact_sum(states, "several").integers()):
            return cluster_interval(states, is_proportion=True) if of is usual_interval else (None, None)
        count = int(wrong + right)
        return of(Sample(count, right, right, count)) if count else (None, None)


class Accuracy:
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
        self.name = name
        self._labels, self._threshold, self._interval = labels, threshold, interval
        self._proportion = Proportion()

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        return self._proportion.states(info)

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if labels and shapes do not match `labels`."""
        decided = decisions(self.name, batch, self._labels, self._threshold)
        right, unknown = decided.predicted == decided.actual, decided.predicted == UNDECIDED
        self._proportion.add(states, right, unknown, batch, decided.pairs)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the accuracy; NaN for a total weight of 0."""
        interval = self._proportion.interval(states, self._interval)
        return MetricResult({self.name: value(self._proportion.number(states), "max", interval)})


class TopK:
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
        self.name = f"top_{k}_accuracy" if name is None else name
        check_labels(self.name, labels, ("index", "one_hot"))
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise TaskError(f"metric {self.name!r}: TopK(k={k!r}) must be a number from 1")
        self._k, self._labels, self._interval = k, labels, interval
        self._proportion = Proportion()

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        return self._proportion.states(info)

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
        self._proportion.add(states, right, has_nan(pairs.predicted), batch, pairs)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the accuracy; NaN for a total weight of 0."""
        interval = self._proportion.interval(states, self._interval)
        return MetricResult({self.name: value(self._proportion.number(states), "max", interval)})
