"""Choose what a step measures: the metrics and loss of the task, or those of the `test_step` of a compiled model.

Both are traced functions of one batch. The outputs are added, exactly and outside the framework, to states that are
summed over batches and ranks. The final numbers are computed once, from the sums.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.compiled import CompiledMeasurement
from sidecar.evaluation.backends.tensorflow.data import array_of, examples_in, repacked, rows_of
from sidecar.evaluation.backends.tensorflow.keras_loss import KerasLoss
from sidecar.evaluation.backends.tensorflow.keras_metric import (
    KerasMetric,
    by_batch_note,
    label_of,
    reads_classes,
)
from sidecar.evaluation.backends.tensorflow.measured_metric import (
    MeasuredMetric,
    masked,
    require_labels_and_predictions,
    taking,
    update,
)
from sidecar.evaluation.backends.tensorflow.mergeability import have_same_rows, part_of
from sidecar.evaluation.backends.tensorflow.metric_inputs import MetricInputs
from sidecar.evaluation.backends.tensorflow.metrics_in_turn import (
    Calls,
    MetricsInTurn,
    attach_masks,
    found_late,
    mask_of,
)
from sidecar.evaluation.backends.tensorflow.model import has_own_test_step
from sidecar.evaluation.backends.tensorflow.randomness import Randomness
from sidecar.evaluation.backends.tensorflow.replay import Changes
from sidecar.evaluation.backends.tensorflow.rounding import TOLERANCE
from sidecar.evaluation.batch_dependence import UNTESTED, BatchDependence
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import require_form_of_keras, with_labels
from sidecar.evaluation.data.plain_arrays import read_only
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import CannotBeMergedError, task_error
from sidecar.evaluation.measurement import rows_note
from sidecar.evaluation.metric_additivity import contents_of, metric_depends_on_batches, states_differ, states_of
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.foreign import InTurn, as_in_turn
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, Metric, MetricResult
from sidecar.evaluation.outputs import Output, by_output, join_results, pick, pick_weights, shown
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum, named, within
from sidecar.evaluation.task import Task, call
from sidecar.system.plain_text import shortened

_LOSS: Final = "loss"
_ROWS: Final = "rows of batches"  # name of a state: numbers of rows and of examples, and of batches where they differ
_EXAMPLES: Final = 1  # place of the number of examples in it
_KERAS_ATTRIBUTES: Final = ("name", "update_state", "reset_state", "result", "variables")
_NEUTRAL_ATTRIBUTES: Final = ("name", "states", "add", "compute")  # of `sidecar.metrics`, which need no framework


class Measurement(Protocol):
    """Turn batches into changes of states, and states into numbers."""

    dependence: BatchDependence
    """Adds up over ranks which numbers depend on how examples are divided into batches."""

    of_batches: set[str]
    """Names of the metrics that depend on it by their nature."""

    randomness: Randomness
    """The generators of random numbers that the model uses."""

    in_turn: MetricsInTurn
    """The metrics that are updated in turn, outside of `step`."""

    inputs: MetricInputs
    """The metrics that may have slices, or intervals from a sample of the examples."""

    tolerance: float
    """The relative difference allowed between sums over a batch and sums over its parts."""

    @property
    def names(self) -> list[str]:
        """Return the names of the metrics that may be updated in turn."""

    @property
    def reads_classes(self) -> bool:
        """Return whether a metric of Keras takes labels as numbers of classes, and ignores none of them."""

    @property
    def stateful_metrics(self) -> dict[str, KerasMetric]:
        """Return, by name, the metrics that `step` can begin with given states."""

    def changes(self, outputs: Any) -> Changes:
        """Select the states of `stateful_metrics` in the output of `step` for one batch."""

    def put_in_turn(self, name: str, reason: str) -> None:
        """Update one of `stateful_metrics` in turn from now on."""

    def step(self, batch: Batch, predictions: Any = None, start: Any = None) -> tuple[Any, Any, Calls]:
        """Compute within a trace everything that `add` needs of one batch.

        `predictions`: the predictions for the batch, if they were computed before. `start`: the states of
        `stateful_metrics` before the batch, by name; `None` for the identity. Return the outputs for `add`, the
        predictions, if they are known, and the updates of the metrics in turn.
        """

    def dependent(self, whole: Changes, halves: Sequence[Changes]) -> set[str]:
        """Return the names of those `stateful_metrics` whose changes by the halves of a batch are not its own."""

    def suspected(self, whole: Any, halves: Sequence[Any]) -> set[str]:
        """Return the names of what may depend on the division of a batch, given the outputs of `step` as arrays.

        Sums of the halves that are those of the whole prove the contrary; others may be due to rounded predictions.
        """

    def dependent_given_predictions(
        self,
        whole: Batch,
        halves: Sequence[Batch],
        predictions: Any,
        of_halves: Sequence[Any] = (),
        suspected: Container[str] | None = None,
    ) -> set[str]:
        """Return the names of metrics that depend on the division of a batch, if its predictions do not.

        `predictions`: the predictions for the batch. `of_halves`: those for the halves, if they are known; they are
        used where rows are not examples. `suspected`: the names that come into question; `None` for all.
        """

    def contents(self, outputs: Any) -> dict[str, str]:
        """Return, by name, what metrics that run outside of the trace make of the outputs of `step` for one batch."""

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return the empty states of all metrics and losses."""

    def add(self, states: SetStates, outputs: Any, firsts: Sequence[int | None]) -> None:
        """Add the outputs of several batches to the states.

        `states`: the states of one eval set. `outputs`: the outputs of `step`, with a list over the batches in place of
        each tensor. `firsts`: the index in the eval set of the first example of each batch; `None` if it is unknown.
        """

    def compute(self, states: SetStates) -> MetricResult:
        """Return the final numbers."""


def measurement(task: Task, model: Any, first: Batch, found: Container[str] = ()) -> Measurement:
    """Return the measurement that the task asks for.

    The model is called on the first batch. Afterwards it is built, and the variables of its metrics exist. `found` has
    the names of metrics that proved to be no sums in an earlier evaluation.
    """
    if task.metrics is not None or task.loss is not None:
        return ChosenMeasurement(task, model, first, found)
    if not getattr(model, "compiled", getattr(model, "_is_compiled", False)):  # Keras 3, tf_keras
        raise task_error(
            "there is nothing to measure: give Task(metrics=…) or Task(loss=…), or compile the model with metrics"
        )
    if not has_own_test_step(model):
        require_form_of_keras(first)
    return CompiledMeasurement(model, first, task, found)


class ChosenMeasurement:
    """Measure with the metrics and the loss of the task.

    Metrics of Keras are updated within the trace. Metrics of `sidecar.metrics` get the arrays of each batch.
    """

    def __init__(self, task: Task, model: Any, first: Batch, found: Container[str] = ()) -> None:
        self._model = model
        x, y, weights = with_labels(first)
        self.randomness = Randomness(model)
        self.randomness.check(lambda: model(repacked(x), training=False))
        predictions = model(repacked(x), training=False)
        self._traced: dict[str, tuple[Output, MeasuredMetric]] = {}
        self._neutral: dict[str, tuple[Output, Metric]] = {}
        self.in_turn = MetricsInTurn()
        self._outputs_in_turn: dict[str, tuple[Output, Any]] = {}
        for output, metric in chosen(task):
            name = shown(output, str(metric.name))
            if name in (*self._traced, *self._neutral, *self.in_turn, _LOSS):
                raise task_error(f"metrics need different names, none of them 'loss': found {name!r} again")
            if _has(metric, _NEUTRAL_ATTRIBUTES):
                self._neutral[name] = output, metric
                if isinstance(metric, InTurn) or task.wants_in_turn(name):
                    self.in_turn.note(name, metric.reason if isinstance(metric, InTurn) else "")
            else:
                inputs = _of_output(output, y, predictions, weights)
                self._add(name, output, metric, inputs, found_late(found, name), wanted=task.wants_in_turn(name))
        self.dependence = BatchDependence([*self._traced, *self._neutral, _LOSS])
        self.of_batches: set[str] = set()
        self.tolerance = max((metric.tolerance for _, metric in self._traced.values()), default=TOLERANCE)
        self._loss = None if task.loss is None else KerasLoss(task.loss, model, weighted=weights is not None)
        if self._loss is not None:
            # A wrong loss fails here, with a clearer message than in a trace.
            self._loss.try_out(y, predictions, weights, examples_in(first))
            if self._loss.is_of_batches:
                self.of_batches.add(_LOSS)
        self.inputs = MetricInputs(self.stateful_metrics, task)
        with self.inputs.noted() as updates:
            for output, metric in self._traced.values() if self.inputs else ():
                metric.step(*_of_output(output, y, predictions, weights))
        self.inputs.choose(updates, examples_in(first), self.tolerance)
        self._outputs = list(dict.fromkeys(output for output, _ in self._neutral.values()))
        inputs_of_first = self._neutral_inputs(y, predictions, weights)
        trial = tf.nest.map_structure(lambda tensor: [array_of(tensor)], inputs_of_first)
        examples = examples_in(first)
        self._add_to_neutral(self._neutral_states(EvalSetInfo(examples, Shard(0, 1))), trial, [0], [examples])

    def _add(
        self, name: str, output: Output, metric: Any, inputs: tuple[Any, Any, Any], late: str, *, wanted: bool
    ) -> None:
        """Add a metric of Keras, in turn if the task wants that or if its states cannot be merged."""
        require_labels_and_predictions(metric)
        reason = late
        try:
            if not wanted and not late:
                self._traced[name] = output, MeasuredMetric(metric, *inputs)
                return
            with taking(label_of(metric), metric, *inputs):
                update(metric, *inputs)  # some metrics create their variables only here
        except CannotBeMergedError as error:
            reason = error.reason
        self._put_in_turn(name, output, metric, reason)

    def _put_in_turn(self, name: str, output: Output, metric: Any, reason: str) -> None:
        self.in_turn.add(name, metric, label_of(metric), reason)
        self._outputs_in_turn[name] = output, metric

    def put_in_turn(self, name: str, reason: str) -> None:
        """Update a metric in turn from now on, because it has proved to be no sum."""
        self.inputs.drop(name)
        output, measured = self._traced.pop(name)
        self._put_in_turn(name, output, measured.metric, reason)

    @property
    def names(self) -> list[str]:
        """Return the names of the metrics that may be updated in turn."""
        return [*self._traced, *self._neutral, *self.in_turn]

    @property
    def reads_classes(self) -> bool:
        """Return whether a metric of Keras takes labels as numbers of classes."""
        return any(reads_classes(measured.metric) for _, measured in self._traced.values())

    @property
    def stateful_metrics(self) -> dict[str, KerasMetric]:
        """Return the metrics of Keras that are not measured by single values, by name."""
        metrics = {name: measured.stateful_metric for name, (_, measured) in self._traced.items()}
        return {name: metric for name, metric in metrics.items() if metric is not None}

    def changes(self, outputs: Any) -> Changes:
        """Select the states of `stateful_metrics` in the output of `step`."""
        changes, *_ = outputs
        return {name: changes[name] for name in self.stateful_metrics}

    def dependent(self, whole: Changes, halves: Sequence[Changes]) -> set[str]:
        """Return nothing: `dependent_given_predictions` tries these metrics, and all others."""
        del whole, halves
        return set()

    def suspected(self, whole: Any, halves: Sequence[Any]) -> set[str]:
        """Return the names of metrics and loss whose outputs for halves are not those for the whole batch."""
        changes, loss, *_ = whole
        found = {
            name
            for name, (_, metric) in self._traced.items()
            if metric.differ(changes[name], [half[0][name] for half in halves])
        }
        if self._loss is not None and self._loss.differ(loss, [half[1] for half in halves]):
            found.add(_LOSS)
        return found | self._neutral.keys()

    def dependent_given_predictions(
        self,
        whole: Batch,
        halves: Sequence[Batch],
        predictions: Any,
        of_halves: Sequence[Any] = (),
        suspected: Container[str] | None = None,
    ) -> set[str]:
        """Return the names of metrics and loss whose states for a batch are not the sum of those for its halves."""
        names = [*self._traced, *self._neutral, _LOSS]
        among = {name for name in names if suspected is None or name in suspected}
        _, y, weights = with_labels(whole)
        sizes = [examples_in(half) for half in halves]
        if have_same_rows((y, predictions)):
            starts = np.cumsum([0, *sizes]).tolist()
            of_halves = [_rows(predictions, start, size) for start, size in zip(starts, sizes, strict=False)]
        elif not of_halves:
            return {UNTESTED}
        parts = [
            (with_labels(half)[1], predicted, with_labels(half)[2])
            for half, predicted in zip(halves, of_halves, strict=True)
        ]
        found = {
            name
            for name, (output, metric) in self._traced.items()
            if name in among
            and metric.depends_on_batches(
                _of_output(output, y, predictions, weights), [_of_output(output, *part) for part in parts]
            )
        }
        if (
            self._loss is not None
            and _LOSS in among
            and self._loss.depends_on_batches((y, predictions, weights), parts, sizes)
        ):
            found.add(_LOSS)
        inputs, *of_parts = (
            tf.nest.map_structure(array_of, self._neutral_inputs(*part)) for part in ((y, predictions, weights), *parts)
        )
        for name, (output, metric) in self._neutral.items():
            if isinstance(metric, InTurn):
                continue
            place = self._outputs.index(output)
            batch = _eval_batch(inputs[place], 0, sum(sizes))
            depends = metric_depends_on_batches(metric, batch)
            if depends is None:  # rows are not examples
                batches = [_eval_batch(each[place], 0, size) for each, size in zip(of_parts, sizes, strict=True)]
                depends = states_differ(metric, states_of(metric, batch), states_of(metric, *batches))
            if depends:
                found.add(name)
        return found

    def contents(self, outputs: Any) -> dict[str, str]:
        """Return the states of the neutral metrics for the outputs of one batch, as texts by name."""
        _, _, inputs, rows, _ = outputs
        return {
            name: contents_of(metric, _eval_batch(inputs[self._outputs.index(output)], 0, int(rows[_EXAMPLES])))
            for name, (output, metric) in self._neutral.items()
            if not isinstance(metric, InTurn)
        }

    def step(self, batch: Batch, predictions: Any = None, start: Any = None) -> tuple[Any, Any, Calls]:
        """Return the changes of metrics, single losses and the inputs of neutral metrics; and the other results."""
        x, y, weights = with_labels(batch)
        predictions = self._model(repacked(x), training=False) if predictions is None else predictions
        start = start or {}
        with self.inputs.noted() as updates:
            changes = {
                name: metric.step(*_of_output(output, y, predictions, weights), start.get(name))
                for name, (output, metric) in self._traced.items()
            }
        examples = rows_of(tf.nest.flatten(batch)[0])
        loss = self._loss.step(y, predictions, weights, examples) if self._loss is not None else {}
        with self.in_turn.noted() as calls:
            for output, metric in self._outputs_in_turn.values():
                update(metric, *_of_output(output, y, predictions, weights))
        rows = self._rows_of(predictions, examples)
        inputs, noted = self._neutral_inputs(y, predictions, weights), self.inputs.read(updates, examples)
        return (changes, loss, inputs, rows, noted), predictions, calls

    def _rows_of(self, predictions: Any, examples: Any) -> Any:
        """Return, within the traced step, numbers of rows and of examples, and 1 if they differ in a measured output.

        Rows may be pixels, nodes, boxes or tokens. They are those of the first output that has others than examples.
        """
        others = [of_keras for of_keras, _ in (*self._traced.values(), *self._outputs_in_turn.values())]
        outputs = dict.fromkeys([*others, *self._outputs, *(() if self._loss is None else self._loss.outputs)])
        rows = examples
        for tensor in tf.nest.flatten([pick(predictions, output) for output in outputs]):
            if tf.is_tensor(tensor) and tensor.shape.rank != 0:
                rows = tf.where(tf.equal(rows, examples), rows_of(tensor), rows)
        return tf.stack([rows, examples, tf.cast(tf.not_equal(rows, examples), tf.int64)])

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return the empty states of all metrics and the loss."""
        states = self._neutral_states(info) | self.dependence.states() | {_ROWS: ExactSum((3,), "int64")}
        states |= self.in_turn.states(list(self.stateful_metrics), info.shard) | self.inputs.states(info)
        for name, (_, metric) in self._traced.items():
            states |= named(name, metric.states(info))
        return states | (named(_LOSS, self._loss.states(info)) if self._loss is not None else {})

    def add(self, states: SetStates, outputs: Any, firsts: Sequence[int | None]) -> None:
        """Add the outputs of several batches to the states."""
        changes, loss, arrays, rows, noted = outputs
        examples = [int(of_batch[_EXAMPLES]) for of_batch in rows]
        for of_batch in rows:
            exact_sum(states, _ROWS).add(of_batch)
        for name, (_, metric) in self._traced.items():
            metric.add(within(states, name), changes[name], examples, firsts)
        if self._loss is not None:
            self._loss.add(within(states, _LOSS), loss, examples, firsts)
        self._add_to_neutral(states, arrays, firsts, examples)
        self.inputs.add(states, noted, firsts)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the final numbers, with an interval for those measured by single values."""
        joined = join_results(self._computed(states))
        found = self.dependence.metrics(states)
        of_keras = by_batch_note([name for name in found if name in self._traced or name == _LOSS])
        others = self.dependence.notes(states, [name for name in found if name in self._neutral])
        rows = rows_note(*exact_sum(states, _ROWS).integers().tolist())
        return replace(joined, notes=of_keras + others + self.in_turn.notes(states, {}) + joined.notes + rows)

    def _computed(self, states: SetStates) -> Iterator[tuple[str, Output, MetricResult]]:
        of_batches = self.dependence.metrics(states)
        for name, (output, traced) in self._traced.items():
            result = traced.compute(within(states, name))
            if name not in of_batches:
                result = self.inputs.with_intervals(result, states, name, str(traced.metric.name))
                result = self.inputs.with_slices(result, states, name, str(traced.metric.name))
            yield name, output, result
        for name, (output, metric) in self._neutral.items():
            yield name, output, sliced.computed(metric, within(states, name))
        for name, result in self.in_turn.results(states).items():
            yield name, self._outputs_in_turn[name][0], result
        if self._loss is not None:
            yield _LOSS, None, self._loss.compute(within(states, _LOSS))

    def _neutral_states(self, info: EvalSetInfo) -> SetStates:
        states: SetStates = {}
        for name, (_, metric) in self._neutral.items():
            states |= named(name, sliced.new_states(metric, info))
        return states

    def _neutral_inputs(self, y: Any, predictions: Any, weights: Any) -> list[dict[str, Any]]:
        """Return, within the traced step, labels, predictions and weights for each output with a neutral metric."""
        inputs = []
        for output in self._outputs:
            picked = pick(predictions, output)
            tensors = {"y": tf.convert_to_tensor(pick(y, output)), "predictions": tf.convert_to_tensor(picked)}
            if (masked_weights := masked(pick_weights(weights, output), picked)) is not None:
                tensors["weights"] = masked_weights
            inputs.append(tensors)
        return inputs

    def _add_to_neutral(
        self,
        states: SetStates,
        arrays: list[dict[str, Any]],
        firsts: Sequence[int | None],
        examples: Sequence[int],
    ) -> None:
        for name, (output, metric) in self._neutral.items():
            metric_states, inputs = within(states, name), arrays[self._outputs.index(output)]
            batches = [
                _eval_batch(dict(zip(inputs, batch, strict=True)), first, size)
                for first, size, *batch in zip(firsts, examples, *inputs.values(), strict=True)
            ]
            sliced.add(metric, metric_states, batches)


def _eval_batch(inputs: dict[str, Any], first: int | None, examples: int) -> EvalBatch:
    """Return the batch that neutral metrics take."""
    arrays = {part: read_only(array) for part, array in inputs.items()}
    return EvalBatch(arrays["y"], arrays["predictions"], arrays.get("weights"), first, examples)


def _of_output(output: Output, y: Any, predictions: Any, weights: Any) -> tuple[Any, Any, Any]:
    return pick(y, output), pick(predictions, output), pick_weights(weights, output)


def _rows(predictions: Any, start: int, size: int) -> Any:
    """Return the predictions for some examples of a batch, with their masks."""

    def cut(tensor: Any) -> Any:
        rows = part_of(start, size, tensor)
        if (mask := mask_of(tensor)) is not None:
            attach_masks(part_of(start, size, mask), rows)
        return rows

    return tf.nest.map_structure(cut, predictions)


def chosen(task: Task) -> list[tuple[Output, Any]]:
    """Return the metrics of the task, with the output that each measures.

    Raises `EvaluationError` for metrics that are not objects in lists, such as the names that Keras accepts.
    """
    if task.metrics is None:
        return []
    example = "such as [keras.metrics.SparseCategoricalAccuracy()]"
    pairs = []
    for output, metrics in by_output(call("Task(metrics=…)", task.metrics)).items():
        if not isinstance(metrics, list | tuple):
            raise task_error(
                f"Task(metrics=…) must return a list of metrics, {example}, found {type(metrics).__name__}"
            )
        for metric in metrics:
            is_known = _has(metric, _KERAS_ATTRIBUTES) or _has(metric, _NEUTRAL_ATTRIBUTES)
            own = metric if is_known else as_in_turn(metric)
            if not is_known and not isinstance(own, InTurn):
                raise task_error(f"Task(metrics=…) must list metric objects, {example}, found {shortened(metric)}")
            pairs.append((output, own))
    return pairs


def _has(metric: Any, names: tuple[str, ...]) -> bool:
    return not isinstance(metric, type) and all(hasattr(metric, name) for name in names)
