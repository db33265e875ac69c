"""Choose what a step measures: the task's own metrics and loss, or all that a compiled model's `test_step` does.

Both are a traced function of one batch whose outputs are added, exactly and outside the framework, to states that can
be summed over batches and ranks; the final numbers are made from the sums, once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.batch_means import BatchMeans, told
from sidecar.evaluation.backends.tensorflow.compiled import CompiledMeasurement
from sidecar.evaluation.backends.tensorflow.data import array_of
from sidecar.evaluation.backends.tensorflow.keras_loss import KerasLoss
from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric
from sidecar.evaluation.backends.tensorflow.measured_metric import MeasuredMetric, masked
from sidecar.evaluation.backends.tensorflow.model import has_own_test_step
from sidecar.evaluation.backends.tensorflow.randomness import Randomness
from sidecar.evaluation.backends.tensorflow.replay import Changes
from sidecar.evaluation.backends.tensorflow.rounding import TOLERANCE
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import require_form_of_keras, with_labels
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, Metric, MetricResult
from sidecar.evaluation.outputs import Output, by_output, join_results, pick, pick_weights, shown
from sidecar.evaluation.states import SetStates, named, within
from sidecar.evaluation.task import Task, call

_LOSS: Final = "loss"
_OF_KERAS: Final = ("name", "update_state", "reset_state", "result", "variables")
_NEUTRAL: Final = ("name", "states", "add", "compute")


class Measurement(Protocol):
    """How one batch becomes changes of states, and states become numbers."""

    by_batch: BatchMeans
    """Which numbers depend on the batches."""

    randomness: Randomness
    """What the model draws."""

    tolerance: float
    """How far sums over a batch may be from sums over its parts."""

    @property
    def kept(self) -> dict[str, KerasMetric]:
        """Metrics whose states `step` can begin with, by name."""
        ...

    def changes(self, outputs: Any) -> Changes:
        """Select the states of `kept` in the output of `step` for one batch."""
        ...

    def step(self, batch: Batch, predictions: Any = None, start: Any = None) -> tuple[Any, Any]:
        """Compute within a trace everything that `add` needs of one batch, and the predictions, if they are known.

        Predictions that are known already are given; `start` is what the states of `kept` hold before, None: identity.
        """
        ...

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        ...

    def add(self, states: SetStates, outputs: Any, firsts: Sequence[int | None]) -> None:
        """Add several batches: what `step` returned, with a list over the batches where it has a tensor.

        `firsts` are the places of their first examples in the eval set.
        """
        ...

    def compute(self, states: SetStates) -> MetricResult:
        """Return the final numbers."""
        ...


def measurement(task: Task, model: Any, first: Batch) -> Measurement:
    """Return the measurement that the task asks for; the model is built and its metrics' variables exist afterwards."""
    if task.metrics is not None or task.loss is not None:
        return ChosenMeasurement(task, model, first)
    if not getattr(model, "compiled", getattr(model, "_is_compiled", False)):  # Keras 3, tf_keras
        raise EvaluationError(
            "task_error",
            "there is nothing to measure: give Task(metrics=…) or Task(loss=…), or compile the model with metrics",
        )
    if not has_own_test_step(model):
        require_form_of_keras(first)
    return CompiledMeasurement(model, first)


class ChosenMeasurement:
    """The task's own metrics and loss: those of Keras change within the trace, others see each batch's arrays."""

    def __init__(self, task: Task, model: Any, first: Batch) -> None:
        self._model = model
        x, y, weights = with_labels(first)
        self.randomness = Randomness(model)
        self.randomness.check(lambda: model(x, training=False))
        predictions = model(x, training=False)
        self._traced: dict[str, tuple[Output, MeasuredMetric]] = {}
        self._neutral: dict[str, tuple[Output, Metric]] = {}
        for output, metric in chosen(task):
            name = shown(output, str(metric.name))
            if name in (*self._traced, *self._neutral, _LOSS):
                raise EvaluationError(
                    "task_error", f"metrics need different names, none of them 'loss': found {name!r} again"
                )
            if _has(metric, _NEUTRAL):
                self._neutral[name] = output, metric
            else:
                part = pick(y, output), pick(predictions, output), pick_weights(weights, output)
                self._traced[name] = output, MeasuredMetric(metric, *part)
        self.by_batch = BatchMeans([*self._traced, _LOSS])
        self.tolerance = max((each.tolerance for _, each in self._traced.values()), default=TOLERANCE)
        for name, (_, metric) in self._traced.items():
            if metric.is_of_batches:
                self.by_batch.add(name)
        self._loss = None if task.loss is None else KerasLoss(task.loss, model, weighted=weights is not None)
        if self._loss is not None:
            self._loss.step(y, predictions, weights)  # what is wrong with it is told now, not from within a graph
            if self._loss.is_of_batches:
                self.by_batch.add(_LOSS)
        self._outputs = list(dict.fromkeys(output for output, _ in self._neutral.values()))
        trial = tf.nest.map_structure(lambda each: [array_of(each)], self._shown_to_neutral(y, predictions, weights))
        self._show(self._neutral_states(EvalSetInfo(len(tf.nest.flatten(y)[0]), Shard(0, 1))), trial, [0])

    @property
    def kept(self) -> dict[str, KerasMetric]:
        """Metrics whose states are read as they are."""
        return {name: each.kept for name, (_, each) in self._traced.items() if each.kept is not None}

    def changes(self, outputs: Any) -> Changes:
        """Select the states of `kept` in the output of `step`."""
        changes, _, _ = outputs
        return {name: changes[name] for name in self.kept}

    def step(self, batch: Batch, predictions: Any = None, start: Any = None) -> tuple[Any, Any]:
        """Compute the changes of Keras' metrics, single losses and the inputs of other metrics; and the predictions."""
        x, y, weights = with_labels(batch)
        predictions = self._model(x, training=False) if predictions is None else predictions
        start = start or {}
        changes = {
            name: metric.step(
                pick(y, output), pick(predictions, output), pick_weights(weights, output), start.get(name)
            )
            for name, (output, metric) in self._traced.items()
        }
        loss = self._loss.step(y, predictions, weights) if self._loss is not None else {}
        return (changes, loss, self._shown_to_neutral(y, predictions, weights)), predictions

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        states = self._neutral_states(info) | self.by_batch.states()
        for name, (_, metric) in self._traced.items():
            states |= named(name, metric.states(info))
        return states | (named(_LOSS, self._loss.states(info)) if self._loss is not None else {})

    def add(self, states: SetStates, outputs: Any, firsts: Sequence[int | None]) -> None:
        """Add several batches."""
        changes, loss, arrays = outputs
        for name, (_, metric) in self._traced.items():
            metric.add(within(states, name), changes[name])
        if self._loss is not None:
            self._loss.add(within(states, _LOSS), loss)
        self._show(states, arrays, firsts)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the final numbers, with intervals where single values were seen."""
        joined = join_results(self._computed(states))
        return replace(joined, notes=told(self.by_batch.names(states)) + joined.notes)

    def _computed(self, states: SetStates) -> Iterator[tuple[str, Output, MetricResult]]:
        for name, (output, traced) in self._traced.items():
            yield name, output, traced.compute(within(states, name))
        for name, (output, metric) in self._neutral.items():
            yield name, output, metric.compute(within(states, name))
        if self._loss is not None:
            yield _LOSS, None, self._loss.compute(within(states, _LOSS))

    def _neutral_states(self, info: EvalSetInfo) -> SetStates:
        states: SetStates = {}
        for name, (_, metric) in self._neutral.items():
            states |= named(name, metric.states(info))
        return states

    def _shown_to_neutral(self, y: Any, predictions: Any, weights: Any) -> list[dict[str, Any]]:
        """Return within the traced step labels, predictions and weights of every output that such a metric needs."""
        found = []
        for output in self._outputs:
            picked = pick(predictions, output)
            tensors = {"y": tf.convert_to_tensor(pick(y, output)), "predictions": tf.convert_to_tensor(picked)}
            of_output = pick_weights(weights, output)
            if (counted := masked(of_output, picked)) is not None:
                tensors["weights"] = counted
            found.append(tensors)
        return found

    def _show(self, states: SetStates, arrays: list[dict[str, Any]], firsts: Sequence[int | None]) -> None:
        for name, (output, metric) in self._neutral.items():
            own, of_output = within(states, name), arrays[self._outputs.index(output)]
            for first, *batch in zip(firsts, *of_output.values(), strict=True):
                metric.add(own, EvalBatch(**dict(zip(of_output, batch, strict=True)), first=first))


def chosen(task: Task) -> list[tuple[Output, Any]]:
    """Return the task's metrics with the output of each: objects, in lists, as only they know their states."""
    if task.metrics is None:
        return []
    example = "such as [keras.metrics.SparseCategoricalAccuracy()]"
    found = []
    for output, made in by_output(call("Task(metrics=…)", task.metrics)).items():
        if not isinstance(made, list | tuple):
            raise EvaluationError(
                "task_error", f"Task(metrics=…) must return a list of metrics, {example}, found {type(made).__name__}"
            )
        for each in made:
            if not _has(each, _OF_KERAS) and not _has(each, _NEUTRAL):
                raise EvaluationError(
                    "task_error", f"Task(metrics=…) must list metric objects, {example}, found {each!r}"
                )
            found.append((output, each))
    return found


def _has(metric: Any, names: tuple[str, ...]) -> bool:
    return not isinstance(metric, type) and all(hasattr(metric, name) for name in names)
