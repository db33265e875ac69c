"""What a step measures: metrics and loss that the task names, or all that a compiled model's `test_step` measures.

Both are a traced function of one batch whose outputs are added, exactly and outside Keras, to states that can be summed
over batches and ranks; the final numbers are made from the sums, once.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from sidecar.records import Value
from sidecar.worker.failures import EvaluationError
from sidecar.worker.states import ExactSum
from sidecar.worker.task import Task
from sidecar.worker.tensorflow.data import Batch
from sidecar.worker.tensorflow.keras_metric import KerasMetric, PerExample, per_example, value

SetStates = dict[str, ExactSum]
"""The states of one eval set, by name."""


class Measurement(Protocol):
    """How one batch becomes changes of states, and states become numbers."""

    def step(self, batch: Batch) -> Any:
        """Within a trace: everything that `add` needs of one batch."""
        ...

    def states(self) -> SetStates:
        """The identity of every state."""
        ...

    def add(self, states: SetStates, outputs: Any) -> None:
        """Add what `step` returned for one batch."""
        ...

    def conclude(self, states: SetStates) -> dict[str, Value]:
        """The final numbers."""
        ...


def measurement(task: Task, model: Any, first: Batch) -> Measurement:
    """The measurement that the task asks for; the model is built and its metrics' variables exist afterwards."""
    if task.metrics is None and task.loss is None:
        if not getattr(model, "compiled", getattr(model, "_is_compiled", False)):
            raise EvaluationError(
                "task_error",
                "there is nothing to measure: give Task(metrics=…) or Task(loss=…), or compile the model with metrics",
            )
        return CompiledMeasurement(model, first)
    return ChosenMeasurement(task, model, first)


class ChosenMeasurement:
    """The task's own metrics and loss."""

    def __init__(self, task: Task, model: Any, first: Batch) -> None:
        self._model = model
        x, y, weights = _unpack(first)
        predictions = model(x, training=False)
        metrics = list(task.metrics()) if task.metrics is not None else []
        for metric in metrics:
            metric.update_state(y, predictions, sample_weight=weights)  # some create their variables only here
        self._metrics = [KerasMetric(metric) for metric in metrics]
        names = [metric.name for metric in self._metrics]
        if len(set(names)) < len(names) or "loss" in names:
            raise EvaluationError("task_error", f"metrics need different names, none of them 'loss': found {names}")
        self._each = {
            metric.name: (function, PerExample(metric.name))
            for metric in self._metrics
            if weights is None and (function := per_example(metric.metric)) is not None
        }
        self._loss = _Loss(task.loss, model, weighted=weights is not None) if task.loss is not None else None

    def step(self, batch: Batch) -> Any:
        """Changes of every metric, single values where an interval can be had, single losses."""
        x, y, weights = _unpack(batch)
        predictions = self._model(x, training=False)
        changes, each = [], {}
        for metric in self._metrics:
            metric.reset()
            metric.metric.update_state(y, predictions, sample_weight=weights)
            changes.append(metric.read())
        for name, (function, _) in self._each.items():
            values = tf.convert_to_tensor(function(y, predictions))
            if values.shape.rank == 1:  # a mean over more than examples has no simple interval
                each[name] = values
        loss = self._loss.step(y, predictions, weights) if self._loss is not None else {}
        return changes, each, loss

    def states(self) -> SetStates:
        """The identity of every state."""
        states: SetStates = {}
        for metric in self._metrics:
            states |= metric.states()
        for _, values in self._each.values():
            states |= values.states()
        return states | (self._loss.states() if self._loss is not None else {})

    def add(self, states: SetStates, outputs: Any) -> None:
        """Add one batch."""
        changes, each, loss = outputs
        for metric, change in zip(self._metrics, changes, strict=True):
            metric.add(states, change)
        for name, values in each.items():
            self._each[name][1].add(states, values)
        if self._loss is not None:
            self._loss.add(states, loss)

    def conclude(self, states: SetStates) -> dict[str, Value]:
        """The final numbers, with intervals where single values were seen."""
        found: dict[str, Value] = {}
        for metric in self._metrics:
            number = metric.number(states)
            if isinstance(number, dict):
                found |= {key: value(each, metric.goal()) for key, each in number.items()}
            else:
                interval = self._each[metric.name][1].interval(states) if metric.name in self._each else (None, None)
                found[metric.name] = value(number, metric.goal(), interval)
        return found | (self._loss.conclude(states) if self._loss is not None else {})


class _Loss:
    """Keras' own definition of an evaluation's loss, Σ w·l / N plus the model's own losses, from single losses."""

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
        losses = tf.cast(tf.convert_to_tensor(self._single(y, predictions, weights)), tf.float32)
        outputs = {"losses": losses}
        if weights is not None:
            outputs["weights"] = tf.cast(weights, tf.float32)
        if self._model.losses:  # regularisation, and what layers added in this call
            added = [tf.cast(tf.convert_to_tensor(each), tf.float32) for each in self._model.losses]
            outputs["added"] = tf.add_n(added)
        return outputs

    def states(self) -> SetStates:
        weight = {"loss/weight": ExactSum((), "float32")} if self._weighted else {}
        return self._values.states() | weight | {"loss/added": ExactSum((), "float64")}

    def add(self, states: SetStates, outputs: dict[str, Any]) -> None:
        self._values.add(states, outputs["losses"])
        if "weights" in outputs:
            states["loss/weight"].add_each(np.asarray(outputs["weights"]))
        if "added" in outputs:
            count = np.asarray(outputs["losses"]).size
            states["loss/added"].add(np.float64(outputs["added"]) * count)  # exact: 24 bits times a small integer

    def conclude(self, states: SetStates) -> dict[str, Value]:
        count, total = self._values.count(states), self._values.total(states)
        added = float(states["loss/added"].round()) / count if count else 0.0
        lower, upper = (None, None) if self._weighted else self._values.interval(states)
        if lower is not None and upper is not None:
            lower, upper = lower + added, upper + added
        mean = total / count if count else math.nan
        if not self._weighted:
            return {"loss": value(mean + added, "min", (lower, upper))}
        weight = float(states["loss/weight"].round())
        by_weight = total / weight if weight else math.nan
        shown = by_weight if self._by_weight else mean
        return {"loss": value(shown + added, "min"), "loss_weighted_mean": value(by_weight + added, "min")}


class CompiledMeasurement:
    """Everything that the compiled model's own `test_step` updates."""

    def __init__(self, model: Any, first: Batch) -> None:
        self._model = model
        self._names: frozenset[str] = frozenset(model.test_step(first))  # metrics are built here
        leaves = list(_leaves(model.metrics))
        self._metrics = [KerasMetric(_Named(metric, f"{index}:{metric.name}")) for index, metric in enumerate(leaves)]
        if unknown := self._names - set(self._results()):
            raise EvaluationError(
                "task_error",
                f"test_step returns {', '.join(sorted(unknown))}, which is no metric of the model, so it cannot be "
                f"added up over batches: keep it in a keras.metrics.Mean that model.metrics lists",
            )

    def step(self, batch: Batch) -> Any:
        """Reset, run the model's own step, read."""
        for metric in self._metrics:
            metric.reset()
        self._model.test_step(batch)
        return [metric.read() for metric in self._metrics]

    def states(self) -> SetStates:
        """The identity of every state."""
        states: SetStates = {}
        for metric in self._metrics:
            states |= metric.states()
        return states

    def add(self, states: SetStates, outputs: Any) -> None:
        """Add one batch."""
        for metric, change in zip(self._metrics, outputs, strict=True):
            metric.add(states, change)

    def conclude(self, states: SetStates) -> dict[str, Value]:
        """The numbers under the names that `test_step` gives them."""
        numbers = {id(metric.metric.inner): metric.number(states) for metric in self._metrics}
        goals = {id(metric.metric.inner): metric.goal() for metric in self._metrics}
        found: dict[str, Value] = {}
        for name, metric in self._results().items():
            number = numbers[id(metric)]
            if name in self._names:
                number = number[name] if isinstance(number, dict) else number
                found[name] = value(number, "min" if name == "loss" else goals[id(metric)])
        return found

    def _results(self) -> dict[str, Any]:
        """Result name to the metric behind it: the model names its results while every metric returns itself."""
        with _returning_themselves(_leaves(self._model.metrics)):
            results = self._model.get_metrics_result()
        return {name: result.metric for name, result in results.items() if isinstance(result, _Itself)}


class _Named:
    """A metric under a name of its own: two outputs of a model may each have an `accuracy`."""

    def __init__(self, inner: Any, name: str) -> None:
        self.inner, self.name = inner, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Itself:
    def __init__(self, metric: Any) -> None:
        self.metric = metric


@contextmanager
def _returning_themselves(metrics: Iterator[Any]) -> Iterator[None]:
    changed = []
    for metric in metrics:
        own = metric.__dict__.get("result")
        changed.append((metric, own))
        object.__setattr__(metric, "result", lambda metric=metric: _Itself(metric))
    try:
        yield
    finally:
        for metric, own in changed:
            if own is None:
                object.__delattr__(metric, "result")
            else:
                object.__setattr__(metric, "result", own)


def _leaves(metrics: Any) -> Iterator[Any]:
    """Single metrics: Keras 3 keeps those given to `compile` in a container."""
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        if type(metric).__name__ == "CompileMetrics" and inner is not None:
            yield from _leaves(inner)
        else:
            yield metric


def _unpack(batch: Batch) -> tuple[Any, Any, Any]:
    if isinstance(batch, tuple) and len(batch) == 2:  # noqa: PLR2004 - (x, y)
        return batch[0], batch[1], None
    if isinstance(batch, tuple) and len(batch) == 3:  # noqa: PLR2004 - (x, y, sample_weight)
        return batch[0], batch[1], batch[2]
    raise EvaluationError(
        "task_error",
        f"elements of an eval set must be (x, y) or (x, y, sample_weight), found {type(batch).__name__}"
        + (f" of {len(batch)}" if isinstance(batch, tuple) else ""),
    )


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
        return losses if weights is None else losses * tf.cast(weights, losses.dtype)

    return apply
