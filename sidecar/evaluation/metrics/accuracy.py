"""Measure how often the model is right with its first guess, or with one of its first k. Imports numpy only."""

import numpy as np

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.decisions import UNDECIDED, decisions
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.pairs import Labels, check_labels, classes, has_nan
from sidecar.evaluation.metrics.proportion import Proportion
from sidecar.evaluation.metrics.sample import IntervalOf, usual_interval
from sidecar.evaluation.states import SetStates


class Accuracy:
    """Weight of what is classified rightly, over all weight.

    Of equal scores the first class wins, as in numpy and Keras. A NaN among the scores of what counts makes the result
    NaN: a model that broke is not one that errs.

    Args:
        labels: "index": numbers of classes (n, …), next to scores (n, …, classes). "one_hot": (n, …, classes).
            "binary": 0 or 1 (n, …), next to one probability each, which means 1 if it is above `threshold`.
        threshold: Of binary labels; 0 for logits.
        name: Of the metric and its number.
        interval: How the 95 % interval is made, where values are unweighted and there is one per example.
    """

    def __init__(
        self,
        labels: Labels = "index",
        *,
        threshold: float = 0.5,
        name: str = "accuracy",
        interval: IntervalOf = usual_interval,
    ) -> None:
        check_labels(name, labels)
        self.name = name
        self._labels, self._threshold, self._interval = labels, threshold, interval
        self._proportion = Proportion()

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        del info  # counts do not depend on it
        return self._proportion.states()

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` for labels and shapes that do not fit to `labels`."""
        decided = decisions(self.name, batch, self._labels, self._threshold)
        right, unknown = decided.predicted == decided.actual, decided.predicted == UNDECIDED
        self._proportion.add(
            states, right, unknown, decided.pairs.weights, one_per_example=decided.pairs.one_per_example
        )

    def compute(self, states: SetStates) -> MetricResult:
        """Return the accuracy; NaN for a total weight of 0."""
        interval = self._proportion.interval(states, self._interval)
        return MetricResult({self.name: value(self._proportion.number(states), "max", interval)})


class TopK:
    """Weight of what has its class among the k largest scores, over all weight.

    Of equal scores the class with the larger number ranks first, as in scikit-learn's `top_k_accuracy_score`. A NaN
    among the scores of what counts makes the result NaN.

    Args:
        k: How many scores.
        labels: "index" or "one_hot", see `Accuracy`.
        name: Of the metric and its number; None: `top_5_accuracy` for a k of 5.
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
        del info  # counts do not depend on it
        return self._proportion.states()

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` for labels and shapes that do not fit, and for fewer classes than k."""
        pairs = classes(self.name, batch, self._labels)
        count = pairs.predicted.shape[-1]
        if count < self._k:
            raise TaskError(f"metric {self.name!r}: TopK(k={self._k}) needs as many classes, predictions have {count}")
        score = np.take_along_axis(pairs.predicted, pairs.actual[:, np.newaxis], axis=-1)
        is_later = np.arange(count) > pairs.actual[:, np.newaxis]
        before = (pairs.predicted > score) | ((pairs.predicted == score) & is_later)
        right = np.count_nonzero(before, axis=-1) < self._k
        self._proportion.add(
            states, right, has_nan(pairs.predicted), pairs.weights, one_per_example=pairs.one_per_example
        )

    def compute(self, states: SetStates) -> MetricResult:
        """Return the accuracy; NaN for a total weight of 0."""
        interval = self._proportion.interval(states, self._interval)
        return MetricResult({self.name: value(self._proportion.number(states), "max", interval)})
