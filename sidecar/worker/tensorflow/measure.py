"""What a step measures: metrics and loss that the task names, or all that a compiled model's `test_step` measures.

Both are a traced function of one batch whose outputs are added, exactly and outside Keras, to states that can be summed
over batches and ranks; the final numbers are made from the sums, once.
"""

from typing import Any, Protocol

import tensorflow as tf

from sidecar.records import Value
from sidecar.worker.failures import EvaluationError
from sidecar.worker.states import SetStates, exact_sum
from sidecar.worker.task import Task, call
from sidecar.worker.tensorflow.compiled import CompiledMeasurement
from sidecar.worker.tensorflow.data import Batch
from sidecar.worker.tensorflow.keras_loss import KerasLoss
from sidecar.worker.tensorflow.keras_metric import KerasMetric, PerExample, per_example, value


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
    _unpack(first)
    if task.metrics is not None or task.loss is not None:
        return ChosenMeasurement(task, model, first)
    if not getattr(model, "compiled", getattr(model, "_is_compiled", False)):  # Keras 3, tf_keras
        raise EvaluationError(
            "task_error",
            "there is nothing to measure: give Task(metrics=…) or Task(loss=…), or compile the model with metrics",
        )
    return CompiledMeasurement(model, first)


class ChosenMeasurement:
    """The task's own metrics and loss."""

    def __init__(self, task: Task, model: Any, first: Batch) -> None:
        self._model = model
        x, y, weights = _unpack(first)
        predictions = model(x, training=False)
        chosen = _chosen(task)
        names = [str(metric.name) for metric in chosen]
        if len(set(names)) < len(names) or "loss" in names:
            raise EvaluationError("task_error", f"metrics need different names, none of them 'loss': found {names}")
        self._metrics: dict[str, KerasMetric] = {}
        self._each: dict[str, tuple[Any, PerExample]] = {}
        for name, metric in zip(names, chosen, strict=True):
            _update(metric, y, predictions, weights)  # some create their variables only here
            self._metrics[name] = known = KerasMetric(metric, name)
            _update(metric, y, predictions, weights)
            once = known.values()
            _update(metric, y, predictions, weights)
            known.check_additive(once, known.values())
            is_plain = weights is None and getattr(predictions, "_keras_mask", None) is None
            if is_plain and (function := per_example(metric)) is not None:
                self._each[name] = function, PerExample(name)
        self._loss = None if task.loss is None else KerasLoss(task.loss, model, weighted=weights is not None)
        if self._loss is not None:
            self._loss.step(y, predictions, weights)  # what is wrong with it is told now, not from within a graph

    def step(self, batch: Batch) -> Any:
        """Changes of every metric, single values where an interval can be had, single losses."""
        x, y, weights = _unpack(batch)
        predictions = self._model(x, training=False)
        changes, each = {}, {}
        for name, metric in self._metrics.items():
            metric.reset()
            _update(metric.metric, y, predictions, weights)
            changes[name] = metric.read()
        for name, (function, _) in self._each.items():
            values = tf.convert_to_tensor(function(y, predictions))
            if values.shape.rank == 1:  # a mean over more than examples has no simple interval
                each[name] = values
        loss = self._loss.step(y, predictions, weights) if self._loss is not None else {}
        return changes, each, loss

    def states(self) -> SetStates:
        """The identity of every state."""
        states: SetStates = {}
        for metric in self._metrics.values():
            states |= metric.states()
        for _, values in self._each.values():
            states |= values.states()
        return states | (self._loss.states() if self._loss is not None else {})

    def add(self, states: SetStates, outputs: Any) -> None:
        """Add one batch."""
        changes, each, loss = outputs
        for name, change in changes.items():
            self._metrics[name].add(states, change)
        for name, values in each.items():
            self._each[name][1].add(states, values)
        if self._loss is not None:
            self._loss.add(states, loss)

    def conclude(self, states: SetStates) -> dict[str, Value]:
        """The final numbers, with intervals where single values were seen."""
        found: dict[str, Value] = {}
        for name, metric in self._metrics.items():
            number = metric.number(states)
            if isinstance(number, dict):
                found |= {key: value(each, metric.goal()) for key, each in number.items()}
            else:
                found[name] = value(number, metric.goal(), self._interval(name, states))
        return found | (self._loss.conclude(states) if self._loss is not None else {})

    def _interval(self, name: str, states: SetStates) -> tuple[float | None, float | None]:
        if name not in self._each:
            return None, None
        _, values = self._each[name]
        counted = self._metrics[name].count_state
        if counted is None or exact_sum(states, counted).round() != values.count(states):
            return None, None  # what was seen one by one is not what the metric averaged
        return values.interval(states)


def _update(metric: Any, y: Any, predictions: Any, weights: Any) -> None:
    """As Keras calls it: a metric of the user's need not know about weights where there are none."""
    if weights is None:
        metric.update_state(y, predictions)
    else:
        metric.update_state(y, predictions, sample_weight=weights)


def _chosen(task: Task) -> list[Any]:
    """The task's metrics: objects, in a list, as only they know their states."""
    if task.metrics is None:
        return []
    made = call("Task(metrics=…)", task.metrics)
    example = "such as [keras.metrics.SparseCategoricalAccuracy()]"
    if not isinstance(made, list | tuple):
        raise EvaluationError(
            "task_error", f"Task(metrics=…) must return a list of metrics, {example}, found {type(made).__name__}"
        )
    for each in made:
        if not all(hasattr(each, name) for name in ("name", "update_state", "reset_state", "result", "variables")):
            raise EvaluationError("task_error", f"Task(metrics=…) must list metric objects, {example}, found {each!r}")
    return list(made)


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
