"""Average the losses of a classifier: log loss, and perplexity, its exponential. Imports numpy only."""

import math

from sidecar.evaluation.metrics.average import MeanLoss
from sidecar.evaluation.metrics.cross_entropy import cross_entropies
from sidecar.evaluation.metrics.metric import EvalBatch, MetricResult, value
from sidecar.evaluation.metrics.pairs import Labels, check_labels
from sidecar.evaluation.metrics.sample import IntervalOf, usual_interval
from sidecar.evaluation.states import SetStates


class LogLoss(MeanLoss):
    """Measure the cross-entropy in nats, Σ w·l / Σ w; NaN if a prediction that counts is NaN.

    Args:
        labels: See `Accuracy`.
        from_logits: Whether predictions are logits. Probabilities are clipped to [eps, 1 - eps] of their dtype as in
            scikit-learn, so that the loss of a zero is finite.
        name: Name of the metric and of its number.
        interval: Function that makes the 95 % interval. Used if values have no weights and there is one per example.
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
        self._average.add(states, losses, pairs.weights, one_per_example=pairs.one_per_example)


class Perplexity(MeanLoss):
    """Measure exp(Σ w·l / Σ w) over all tokens that count, in sequences of any length; no interval.

    Args:
        labels: "index" for tokens (n, t) with scores (n, t, tokens), or "one_hot".
        from_logits: See `LogLoss`.
        name: Name of the metric and of its number.
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
        """Return the perplexity; infinite if it exceeds float64, NaN for a total weight of 0."""
        try:
            number = math.exp(self._average.mean(states))
        except OverflowError:
            number = math.inf
        return MetricResult({self.name: value(number, "min")})
