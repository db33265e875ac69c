"""Means of a classifier's losses: log loss, and perplexity, its exponential. Imports numpy only."""

import math

from sidecar.evaluation.metrics.average import MeanLoss
from sidecar.evaluation.metrics.cross_entropy import cross_entropies
from sidecar.evaluation.metrics.metric import EvalBatch, MetricResult, value
from sidecar.evaluation.metrics.pairs import Labels, check_labels
from sidecar.evaluation.metrics.sample import IntervalOf, usual_interval
from sidecar.evaluation.states import SetStates


class LogLoss(MeanLoss):
    """Cross-entropy in nats, Σ w·l / Σ w; NaN where a prediction that counts is.

    Args:
        labels: See `Accuracy`.
        from_logits: Whether predictions are logits. Probabilities are kept in [eps, 1 - eps] of their dtype, as
            scikit-learn does, so that the loss of a zero is finite.
        name: Of the metric and its number.
        interval: How the 95 % interval is made, where values are unweighted and there is one per example.
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
        """Add one batch. Raises `TaskError` for labels or shapes that do not fit, and what are no probabilities."""
        losses, pairs = cross_entropies(self.name, batch, self._labels, from_logits=self._from_logits)
        self._average.add(states, losses, pairs.weights, one_per_example=pairs.one_per_example)


class Perplexity(MeanLoss):
    """exp(Σ w·l / Σ w) over all tokens that count, whatever the lengths of their sequences; no interval.

    Args:
        labels: "index" for tokens (n, t) next to scores (n, t, tokens), or "one_hot".
        from_logits: See `LogLoss`.
        name: Of the metric and its number.
    """

    def __init__(self, labels: Labels = "index", *, from_logits: bool = False, name: str = "perplexity") -> None:
        check_labels(name, labels, ("index", "one_hot"))
        super().__init__(name)
        self._labels, self._from_logits = labels, from_logits

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` as `LogLoss.add` does."""
        losses, pairs = cross_entropies(self.name, batch, self._labels, from_logits=self._from_logits)
        self._average.add(states, losses, pairs.weights, one_per_example=pairs.one_per_example)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the perplexity; infinite beyond float64, NaN for a total weight of 0."""
        try:
            number = math.exp(self._average.mean(states))
        except OverflowError:
            number = math.inf
        return MetricResult({self.name: value(number, "min")})
