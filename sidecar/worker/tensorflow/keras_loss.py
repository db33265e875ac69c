"""The loss as Keras defines it for an evaluation, from the losses of single examples instead of means of batches."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from sidecar.records import Value
from sidecar.worker.failures import EvaluationError
from sidecar.worker.states import ExactSum, SetStates, exact_sum
from sidecar.worker.tensorflow.keras_metric import PerExample, value


class KerasLoss:
    """Σ w·l / N plus the model's own losses; Σ w·l / Σ w beside it where there are weights.

    N counts single losses: examples, or positions of a sequence; those that Keras masks do not count.
    """

    def __init__(self, loss: Any, model: Any, *, weighted: bool) -> None:
        if getattr(loss, "reduction", None) == "sum":
            raise EvaluationError(
                "task_error",
                "loss with reduction='sum' depends on the batch size: use reduction='sum_over_batch_size'",
            )
        self._by_weight = getattr(loss, "reduction", None) == "mean_with_sample_weight"
        self._weighted = weighted
        self._model = model
        self._single = _single_losses(loss)
        self._values = PerExample("loss")

    def step(self, y: Any, predictions: Any, weights: Any) -> dict[str, Any]:
        """Single losses of a batch, and what belongs beside them."""
        losses = tf.cast(tf.convert_to_tensor(self._single(y, predictions, weights)), tf.float32)
        if losses.shape.rank == 0:
            raise EvaluationError(
                "task_error", "Task(loss=…) returns one number per batch: let it return one per example"
            )
        outputs = {"losses": losses}
        if weights is not None:
            outputs["weights"] = _broadcast(tf.cast(weights, tf.float32), losses)
        mask = getattr(predictions, "_keras_mask", None)
        if mask is not None and mask.shape.rank == losses.shape.rank:
            outputs = {name: tf.boolean_mask(each, mask) for name, each in outputs.items()}
        if self._model.losses:  # regularisation, and what layers added in this call
            added = [tf.cast(tf.convert_to_tensor(each), tf.float32) for each in self._model.losses]
            outputs["added"] = tf.add_n(added)
        return outputs

    def states(self) -> SetStates:
        """The identity of every state."""
        weight = {"loss/weight": ExactSum((), "float32")} if self._weighted else {}
        return self._values.states() | weight | {"loss/added": ExactSum((), "float64")}

    def add(self, states: SetStates, outputs: dict[str, Any]) -> None:
        """Add one batch."""
        self._values.add(states, outputs["losses"])
        if "weights" in outputs:
            exact_sum(states, "loss/weight").add_each(np.asarray(outputs["weights"]))
        if "added" in outputs:
            count = np.asarray(outputs["losses"]).size
            exact_sum(states, "loss/added").add(
                np.float64(outputs["added"]) * count
            )  # exact: 24 bits times a small integer

    def conclude(self, states: SetStates) -> dict[str, Value]:
        """`loss`, with an interval where no weights blur what an example is; `loss_weighted_mean` where they do."""
        count, total = self._values.count(states), self._values.total(states)
        mean = total / count if count else math.nan
        added = float(exact_sum(states, "loss/added").round()) / count if count else 0.0
        if not self._weighted:
            lower, upper = self._values.interval(states)
            interval = (None, None) if lower is None or upper is None else (lower + added, upper + added)
            return {"loss": value(mean + added, "min", interval)}
        weight = float(exact_sum(states, "loss/weight").round())
        by_weight = total / weight if weight else math.nan
        shown = by_weight if self._by_weight else mean
        return {"loss": value(shown + added, "min"), "loss_weighted_mean": value(by_weight + added, "min")}


def _single_losses(loss: Any) -> Callable[[Any, Any, Any], Any]:
    """The loss of each example, weighted: a loss object without its reduction, or a function's own result."""
    if hasattr(loss, "reduction"):
        single = copy.copy(loss)
        single.reduction = "none"
        return lambda y, predictions, weights: single(y, predictions, sample_weight=weights)
    if not callable(loss):
        raise EvaluationError("task_error", f"Task(loss={loss!r}) must be a loss object or a function of (y, y_pred)")

    def apply(y: Any, predictions: Any, weights: Any) -> Any:
        losses = tf.convert_to_tensor(loss(y, predictions))
        return losses if weights is None else losses * _broadcast(tf.cast(weights, losses.dtype), losses)

    return apply


def _broadcast(weights: Any, losses: Any) -> Any:
    """One weight per loss: an example's weight holds for all its positions."""
    while weights.shape.rank < losses.shape.rank:
        weights = weights[..., tf.newaxis]
    if weights.shape.rank > losses.shape.rank:
        weights = tf.squeeze(weights, -1)  # (N, 1) for losses (N,), as Keras does
    return tf.broadcast_to(weights, tf.shape(losses))
