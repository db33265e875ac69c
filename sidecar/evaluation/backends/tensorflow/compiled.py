"""Measure a compiled model through its `test_step`: changes of its metrics, under the names of its results."""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.data import examples_in, repacked, rows_of
from sidecar.evaluation.backends.tensorflow.derived_results import DerivedResults, flat
from sidecar.evaluation.backends.tensorflow.keras_metric import (
    KerasMetric,
    by_batch_note,
    label_of,
    reads_classes,
    undefined,
)
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.backends.tensorflow.measured_metric import (
    OF_16_BITS,
    require_weights_for_mask,
    taking_weights,
)
from sidecar.evaluation.backends.tensorflow.mergeability import SIZE_ERRORS, probe, probe_twice
from sidecar.evaluation.backends.tensorflow.metric_inputs import MetricInputs
from sidecar.evaluation.backends.tensorflow.metrics_in_turn import Calls, MetricsInTurn, found_late, mask_of, replaced
from sidecar.evaluation.backends.tensorflow.model import has_own_test_step, not_called
from sidecar.evaluation.backends.tensorflow.randomness import Randomness
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.backends.tensorflow.replay import Changes
from sidecar.evaluation.backends.tensorflow.rounding import tolerance_of
from sidecar.evaluation.batch_dependence import BatchDependence
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import parts_of
from sidecar.evaluation.failures import CannotBeMergedError, task_error
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult, value
from sidecar.evaluation.states import SetStates, named, within
from sidecar.evaluation.task import Task
from sidecar.protocol.records import Value


class CompiledMeasurement:
    """Measure every metric that the `test_step` of a compiled model updates.

    `first`: a first batch. `task` may name metrics to be evaluated in turn. `found`: names of metrics that proved to be
    no sums in an earlier evaluation.
    """

    def __init__(self, model: Any, first: Batch, task: Task, found: Container[str] = ()) -> None:
        self._model = model
        self.in_turn = MetricsInTurn()
        weights = None if has_own_test_step(model) else parts_of(first)[-1]
        with _overheard(model) as seen, taking_weights("the compiled loss, or a metric,", weights):
            try:
                results = model.test_step(repacked(first))  # metrics get their variables here
            except Exception as error:
                if seen and any(dtype in ("float16", "bfloat16") for dtype in _types_in(seen)):
                    error.remedy = OF_16_BITS  # type: ignore[attr-defined]
                raise
        for predictions in () if is_keras_2(model) else tf.nest.flatten(seen):
            require_weights_for_mask(weights, predictions)
        if not isinstance(results, dict):
            raise task_error(f"test_step must return metrics by name, found {type(results).__name__}")
        losses = _losses_of_keras(model)
        self._metrics: dict[str, KerasMetric] = {}
        self._by_result: dict[str, str] = {}
        self.inputs = MetricInputs({})
        self._take(losses, task, found)
        self.randomness = Randomness(model)
        self.randomness.check(lambda: self._all_of(first))
        self.dependence = BatchDependence(list(self._metrics))
        # Keras' loss of a batch is a mean over its unmasked positions, so the value of a batch is used unchanged.
        is_masked = any(mask_of(tensor) is not None for tensor in tf.nest.flatten(seen))
        self._unweighted = [id(metric) for metric in getattr(getattr(model, "_compile_loss", None), "metrics", ())]
        self.tolerance = tolerance_of(getattr(model, "compute_dtype", ""), *_types_in(seen))
        self.of_batches = {
            name for name, metric in self._metrics.items() if is_masked and _is_in(metric.metric, losses)
        }
        for (name, metric), probed in list(zip(self._metrics.items(), self._probe(first), strict=True)):
            try:
                metric.require_additive(probed.in_turn, [probed.first, probed.second])
                metric.require_no_other_state()
            except CannotBeMergedError as error:
                self.put_in_turn(name, error.reason)
        self._by_result = self._sources(first)  # runs the step again
        self.inputs = MetricInputs(self._of_results(), task)
        with self.inputs.noted() as updates:
            if self.inputs:
                self._test(first)
        self.inputs.choose(updates, examples_in(first), self.tolerance)
        names = self._not_of_metrics(flat(results))
        # A metric in turn that returns a dict has its own name here, and those of its numbers in the results.
        self._order = [
            name for name in dict.fromkeys((*flat(results), *self._by_result)) if name in {*self._by_result, *names}
        ]
        self._derived = DerivedResults(model, self._metrics, self.in_turn, names, first, self._after(first))

    def _of_results(self) -> dict[str, KerasMetric]:
        """Return the metrics that are not updated in turn, by the name of their result."""
        return {name: self._metrics[source] for name, source in self._by_result.items() if source in self._metrics}

    def _not_of_metrics(self, results: dict[str, Any]) -> list[str]:
        """Return the names of the results that are not results of metrics."""
        known = set(self._by_result)
        for source in self._by_result.values():
            metric = self._metrics[source].metric if source in self._metrics else dict(self.in_turn.items())[source]
            with suppress(Exception):  # one in turn may not have a result before its first batch
                if isinstance(several := metric.result(), dict):
                    known |= set(flat(several))
        return [name for name in results if name not in known]

    def _after(self, batch: Batch) -> dict[str, list[Any]]:
        """Return the states of the metrics after one batch."""
        self._reset()
        self._test(batch)
        states = {name: metric.values() for name, metric in self._metrics.items()}
        self._reset()
        return states

    def _take(self, losses: list[Any], task: Task, found: Container[str]) -> None:
        """Take the metrics of the model: by their states, or in turn."""
        for index, metric in enumerate(_leaves(self._model.metrics)):
            name, is_loss = f"{index}:{metric.name}", _is_in(metric, losses)
            label = f"the compiled loss ({metric.name!r})" if is_loss else label_of(metric)
            reason = found_late(found, name)
            if reason or (not is_loss and task.wants_in_turn(str(metric.name))):
                self.in_turn.add(name, metric, label, reason)
                continue
            try:
                self._metrics[name] = KerasMetric(metric, label)
            except CannotBeMergedError as error:
                self.in_turn.add(name, metric, label, error.reason)

    def _probe(self, first: Batch) -> Iterable[Any]:
        recurrent = RecurrentStates(self._model)
        arguments = first, self._reset, self._test, lambda: [metric.values() for metric in self._metrics.values()]
        if not recurrent:
            with suppress(*SIZE_ERRORS):
                return probe(*arguments)
        return probe_twice(*arguments, recurrent.reset)

    def _reset(self) -> None:
        for metric in self._metrics.values():
            metric.metric.reset_state()

    def _test(self, batch: Batch) -> None:
        self.randomness.seed(tf.constant([0, 0], tf.int64))
        with self.in_turn.noted():
            self._model.test_step(repacked(batch))

    def _all_of(self, batch: Batch) -> list[Any]:
        """Return the predictions that the step passes to Keras for a batch, and the states of all metrics after it."""
        self._reset()
        with _overheard(self._model) as seen, self.in_turn.noted():
            self._model.test_step(repacked(batch))
        return [seen, [metric.values() for metric in self._metrics.values()]]

    def put_in_turn(self, name: str, reason: str) -> None:
        """Update a metric in turn from now on, because it has proved to be no sum."""
        for result, source in self._by_result.items():
            if source == name:
                self.inputs.drop(result)
        metric = self._metrics.pop(name).metric
        self.in_turn.add(name, metric, label_of(metric), reason)

    @property
    def names(self) -> list[str]:
        """Return the names of the metrics that may be updated in turn."""
        return [str(metric.name) for metric in _leaves(self._model.metrics)]

    @property
    def reads_classes(self) -> bool:
        """Return whether a metric takes labels as numbers of classes."""
        return any(reads_classes(metric.metric) for metric in self._metrics.values())

    @property
    def stateful_metrics(self) -> dict[str, KerasMetric]:
        """Return the metrics whose states are read unchanged."""
        return {name: metric for name, metric in self._metrics.items() if id(metric.metric) not in self._unweighted}

    def changes(self, outputs: Any) -> Changes:
        """Select the states of `stateful_metrics` in the output of `step`."""
        states = dict(zip(self._metrics, outputs[0], strict=True))
        return {name: states[name] for name in self.stateful_metrics}

    def dependent(self, whole: Changes, halves: Sequence[Changes]) -> set[str]:
        """Return the names of metrics whose states after a batch are not the sum of those after its halves."""
        return {
            name
            for name, metric in self.stateful_metrics.items()
            if metric.depends_on_batches(whole[name], [half[name] for half in halves], self.tolerance)
        }

    def suspected(self, whole: Any, halves: Sequence[Any]) -> set[str]:
        """Return the names of all metrics: `dependent` compares their changes."""
        del whole, halves
        return set(self._metrics)

    def dependent_given_predictions(
        self,
        whole: Batch,
        halves: Sequence[Batch],
        predictions: Any,
        of_halves: Sequence[Any] = (),
        suspected: Container[str] | None = None,
    ) -> set[str]:
        """Return nothing: the step predicts by itself."""
        del whole, halves, predictions, of_halves, suspected
        return set()

    def contents(self, outputs: Any) -> dict[str, str]:
        """Return nothing: all metrics run within the step."""
        del outputs
        return {}

    def step(self, batch: Batch, predictions: Any = None, start: Any = None) -> tuple[Any, Any, Calls]:
        """Run `test_step` from reset metrics; return their states and the predictions passed to Keras, if any.

        The updates of the metrics in turn are returned, too.
        """
        del predictions  # `test_step` of the model predicts by itself
        for name, metric in self._metrics.items():
            metric.reset(None if start is None else start.get(name))
        with _overheard(self._model) as seen, self.in_turn.noted() as calls, self.inputs.noted() as updates:
            self._model.test_step(repacked(batch))
        changes = [self._by_example(metric, seen) for metric in self._metrics.values()]
        return (changes, self.inputs.read(updates, rows_of(tf.nest.flatten(batch)[0]))), seen, calls

    def _by_example(self, metric: KerasMetric, seen: list[Any]) -> list[Any]:
        """Return the values of a metric after one batch; weigh the loss of an output by examples, unlike Keras 3."""
        change = metric.read()
        if id(metric.metric) not in self._unweighted or not seen:
            return change
        total, batches = change
        examples = tf.cast(tf.shape(tf.nest.flatten(seen)[0])[0], total.dtype)
        return [total * tf.where(batches == 1, examples, 1), tf.where(batches == 1, examples, batches)]

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return the empty states of all metrics."""
        states = self.dependence.states() | self.in_turn.states(list(self.stateful_metrics), info.shard)
        states |= self.inputs.states(info)
        for name, metric in self._metrics.items():
            states |= named(name, metric.states(info))
        return states

    def add(self, states: SetStates, outputs: Any, firsts: Sequence[int | None]) -> None:
        """Add the outputs of several batches to the states."""
        changes, noted = outputs
        for (name, metric), change in zip(self._metrics.items(), changes, strict=True):
            metric.add(within(states, name), change)
        self.inputs.add(states, noted, firsts)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the numbers under the names that `test_step` gives them."""
        found = _Numbers(sources_of_batches=set(self.dependence.metrics(states)))
        in_turn = self.in_turn.results(states)
        derived = self._derived_numbers(states, in_turn)
        for name in self._order:
            source = self._by_result.get(name)
            if source is None:
                self._add_derived(found, states, name, derived.get(name, {}))
            elif source not in self.in_turn:
                self._add_metric(found, states, name, source)
            elif source in in_turn:
                found.values |= _renamed(in_turn[source], self.in_turn.name_of(source), name)
                found.notes += in_turn[source].notes
        names = {source: name for name, source in self._by_result.items()}
        notes = by_batch_note(found.of_batches) + self.dependence.notes(states, []) + undefined(found.without_weight)
        notes += self.in_turn.notes(states, names) + found.notes + not_called(self._model)
        if found.by_example:
            listed = ", ".join(found.by_example)
            notes += (f"{listed}: all examples count alike; Keras 3 takes the mean over its batches",)
        return MetricResult(found.values, notes=notes, slices=found.slices)

    def _add_metric(self, found: "_Numbers", states: SetStates, name: str, source: str) -> None:
        metric = self._metrics[source]
        numbers = metric.numbers(within(states, source), name)
        result = MetricResult(
            {key: value(number, "min" if key == "loss" else metric.goal()) for key, number in numbers.items()}
        )
        if source not in found.sources_of_batches:
            result = self.inputs.with_intervals(result, states, name, name)
            result = self.inputs.with_slices(result, states, name, name)
        found.values |= result.values
        for label, of_slice in result.slices.items():
            found.slices.setdefault(label, {}).update(of_slice)
        found.notes += result.notes
        if id(metric.metric) in self._unweighted:
            found.by_example += numbers
        elif source in found.sources_of_batches:
            found.of_batches += numbers
        if self._is_undefined(source, states):
            found.without_weight += numbers

    def _add_derived(self, found: "_Numbers", states: SetStates, name: str, numbers: dict[str, float]) -> None:
        """Add numbers that follow from metrics; they are means over batches, or undefined, if one of these is."""
        sources = self._derived.sources[name]
        is_undefined = any(self._is_undefined(source, states) for source in sources)
        for key, number in numbers.items():
            found.values[key] = value(math.nan if is_undefined else number, "min" if key == "loss" else "none")
        if sources & found.sources_of_batches:
            found.of_batches += numbers
        if is_undefined:
            found.without_weight += numbers

    def _is_undefined(self, source: str, states: SetStates) -> bool:
        return source in self._metrics and self._metrics[source].is_undefined(within(states, source))

    def _derived_numbers(self, states: SetStates, in_turn: Mapping[str, MetricResult]) -> dict[str, dict[str, float]]:
        """Return the numbers that the step computes from results, by result; nothing before all of these are known."""
        if any(name not in in_turn for name in self.in_turn):
            return {}
        totals = {name: metric.totals(within(states, name)) for name, metric in self._metrics.items()}
        singles = {
            name: float.fromhex(next(iter(result.values.values())).hex)
            for name, result in in_turn.items()
            if len(result.values) == 1
        }
        return self._derived.numbers(totals, singles)

    def _sources(self, first: Batch) -> dict[str, str]:
        """Map the name of each result to its metric, by a step in which `result()` of each metric is recorded."""
        metrics = {name: metric.metric for name, metric in self._metrics.items()} | dict(self.in_turn.items())
        with self.in_turn.noted(), _recorded(metrics) as recorded:
            results = flat(self._model.test_step(repacked(first)))
        by_object = {id(result): name for name, result in recorded}
        found: dict[str, str] = {}
        several = {name for name, result in recorded if isinstance(result, dict)}
        for name, result in results.items():
            source = by_object.get(id(result))
            if source is not None and not (source in several and source in found.values()):
                found[name] = source
        return found


@dataclass(kw_only=True)
class _Numbers:
    """Collect numbers, and the names of those about which there is a note."""

    sources_of_batches: set[str]
    values: dict[str, Value] = field(default_factory=dict)
    slices: dict[str, dict[str, Value]] = field(default_factory=dict)
    of_batches: list[str] = field(default_factory=list)
    by_example: list[str] = field(default_factory=list)
    notes: tuple[str, ...] = ()  # about intervals, and metrics in turn
    without_weight: list[str] = field(default_factory=list)


def _renamed(result: MetricResult, metric: str, shown: str) -> dict[str, Value]:
    """Return the numbers of a metric under the name that `test_step` gives its result."""
    return {
        shown + key.removeprefix(metric) if key == metric or key.startswith(f"{metric}_") else key: number
        for key, number in result.values.items()
    }


@contextmanager
def _recorded(metrics: Mapping[str, Any]) -> Iterator[list[tuple[str, Any]]]:
    """Record what `result()` of each metric returns: the object, or a dict and each object in it."""
    recorded: list[tuple[str, Any]] = []

    def recording(name: str, original: Callable[[], Any]) -> Callable[[], Any]:
        def result() -> Any:
            returned = original()
            parts = [returned, *flat(returned).values()] if isinstance(returned, dict) else [returned]
            recorded.extend((name, part) for part in parts)
            return returned

        return result

    with ExitStack() as changed:
        for name, metric in metrics.items():
            changed.enter_context(replaced(metric, "result", recording(name, metric.result)))
        yield recorded


def _types_in(predictions: Any) -> list[str]:
    """Return the names of the types of predictions."""
    return [tf.as_dtype(part.dtype).name for part in tf.nest.flatten(predictions)]


@contextmanager
def _overheard(model: Any) -> Iterator[list[Any]]:
    """Yield the predictions that a step passes to Keras' `compute_metrics`; nothing if the step does not call it."""
    seen: list[Any] = []
    whole = model.compute_metrics

    def compute_metrics(x: Any, y: Any, y_pred: Any, *others: Any, **named: Any) -> Any:
        seen.append(y_pred)
        return whole(x, y, y_pred, *others, **named)

    with replaced(model, "compute_metrics", compute_metrics):
        yield seen


def _losses_of_keras(model: Any) -> list[Any]:
    """Return the metrics in which Keras keeps the compiled loss: the total, and one per output."""
    compiled_loss = getattr(model, "_compile_loss", None) or getattr(model, "compiled_loss", None)  # Keras 3, tf_keras
    return [getattr(model, "_loss_tracker", None), *getattr(compiled_loss, "metrics", ())]


def _is_in(metric: Any, losses: list[Any]) -> bool:
    return any(metric is loss for loss in losses)


def _leaves(metrics: Any) -> Iterator[Any]:
    """Yield single metrics, opening the container in which Keras 3 keeps the metrics given to `compile`."""
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        if type(metric).__name__ == "CompileMetrics" and inner is not None:
            yield from _leaves(inner)
        else:
            yield metric
