"""What a compiled model's own `test_step` measures, whatever that is: its metrics' changes, its results' names."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from sidecar.records import Value
from sidecar.worker.failures import EvaluationError
from sidecar.worker.metrics.metric import Extent, Numbers, value
from sidecar.worker.states import SetStates, named, within
from sidecar.worker.tensorflow.cache import Batch
from sidecar.worker.tensorflow.keras_metric import KerasMetric
from sidecar.worker.tensorflow.probe import divided


class CompiledMeasurement:
    """Everything that the compiled model's own `test_step` updates."""

    def __init__(self, model: Any, first: Batch) -> None:
        self._model = model
        with _overheard(model) as seen:
            results = model.test_step(first)  # metrics get their variables here
        if not isinstance(results, dict):
            raise EvaluationError(
                "task_error", f"test_step must return metrics by name, found {type(results).__name__}"
            )
        metrics = list(_leaves(model.metrics))
        self._metrics = {f"{index}:{metric.name}": KerasMetric(metric) for index, metric in enumerate(metrics)}
        whole, first_part, second_part = (self._after(part) for part in divided(first))
        # Keras' own loss of a batch is a mean over what is not masked there: it is taken as it is, batch by batch.
        excepted = (
            _losses_of_keras(model) if any(hasattr(each, "_keras_mask") for each in tf.nest.flatten(seen)) else []
        )
        for metric, *states in zip(self._metrics.values(), whole, first_part, second_part, strict=True):
            if all(metric.metric is not each for each in excepted):
                metric.check_mergeable(states[0], states[1:])
        self._unweighted = [id(each) for each in getattr(getattr(model, "_compile_loss", None), "metrics", ())]
        self._by_result = self._sources(first)  # runs the step again
        found = set(self._by_result)
        for source in self._by_result.values():
            if isinstance(several := self._metrics[source].metric.result(), dict):
                found |= set(several)
        if unknown := set(results) - found:
            raise EvaluationError("task_error", _unknown(sorted(unknown)))

    def _after(self, batch: Batch) -> list[list[Any]]:
        """Every metric's states after nothing but these examples."""
        for metric in self._metrics.values():
            metric.metric.reset_state()
        self._model.test_step(batch)
        return [metric.values() for metric in self._metrics.values()]

    def step(self, batch: Batch, predictions: Any = None) -> tuple[Any, Any]:
        """Reset, run the model's own step, read; and what it predicted, where that is seen."""
        del predictions  # the model's own step makes its own
        for metric in self._metrics.values():
            metric.reset()
        with _overheard(self._model) as seen:
            self._model.test_step(batch)
        return [self._by_example(metric, seen) for metric in self._metrics.values()], seen

    def _by_example(self, metric: KerasMetric, seen: list[Any]) -> list[Any]:
        """What a metric holds after one batch; a loss by output counts examples, where Keras 3 forgets how many."""
        change = metric.read()
        if id(metric.metric) not in self._unweighted or not seen:
            return change
        total, batches = change
        examples = tf.cast(tf.shape(tf.nest.flatten(seen)[0])[0], total.dtype)
        return [total * tf.where(batches == 1, examples, 1), tf.where(batches == 1, examples, batches)]

    def states(self, extent: Extent) -> SetStates:
        """The identity of every state."""
        states: SetStates = {}
        for name, metric in self._metrics.items():
            states |= named(name, metric.states(extent))
        return states

    def add(self, states: SetStates, outputs: Any, firsts: Sequence[int | None]) -> None:
        """Add several batches."""
        del firsts  # sums do not depend on them
        for (name, metric), changes in zip(self._metrics.items(), outputs, strict=True):
            metric.add(within(states, name), changes)

    def conclude(self, states: SetStates) -> Numbers:
        """The numbers under the names that `test_step` gives them."""
        found: dict[str, Value] = {}
        for name, source in self._by_result.items():
            metric = self._metrics[source]
            number = metric.number(within(states, source))
            numbers = number if isinstance(number, dict) else {name: number}
            found |= {each: value(one, "min" if each == "loss" else metric.goal()) for each, one in numbers.items()}
        return Numbers(found)

    def _sources(self, first: Batch) -> dict[str, str]:
        """Result name to the metric behind it: the step names its results while every metric returns itself."""
        by_object = {id(metric.metric): name for name, metric in self._metrics.items()}
        try:
            with _returning_themselves([metric.metric for metric in self._metrics.values()]):
                results = self._model.test_step(first)
        except (TypeError, ValueError, AttributeError) as error:  # it computes with what it took for numbers
            raise EvaluationError("task_error", _unknown([f"what it computes from metrics ({error})"])) from error
        return {
            name: by_object[id(result.metric)]
            for name, result in results.items()
            if isinstance(result, _Itself) and id(result.metric) in by_object
        }


class _Itself:
    """Stands where a metric's result is expected."""

    def __init__(self, metric: Any) -> None:
        self.metric = metric


@contextmanager
def _returning_themselves(metrics: list[Any]) -> Iterator[None]:
    """`result()` of each metric returns the metric."""
    with ExitStack() as changed:
        for metric in metrics:
            changed.enter_context(_set(metric, "result", lambda metric=metric: _Itself(metric)))
        yield


@contextmanager
def _overheard(model: Any) -> Iterator[list[Any]]:
    """The predictions that a step hands to Keras' `compute_metrics`, as Keras' own does; none of one that does not."""
    seen: list[Any] = []
    whole = model.compute_metrics

    def compute_metrics(x: Any, y: Any, y_pred: Any, *others: Any, **named: Any) -> Any:
        seen.append(y_pred)
        return whole(x, y, y_pred, *others, **named)

    with _set(model, "compute_metrics", compute_metrics):
        yield seen


@contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of an object's own, past Keras' bookkeeping of attributes."""
    own = owner.__dict__.get(name)  # tf_keras wraps what a metric has there
    object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            object.__delattr__(owner, name)
        else:
            object.__setattr__(owner, name, own)


def _losses_of_keras(model: Any) -> list[Any]:
    """The metrics in which Keras keeps the compiled loss, of all outputs and of each."""
    kept = getattr(model, "_compile_loss", None) or getattr(model, "compiled_loss", None)  # Keras 3, tf_keras
    return [getattr(model, "_loss_tracker", None), *getattr(kept, "metrics", ())]


def _leaves(metrics: Any) -> Iterator[Any]:
    """Single metrics: Keras 3 keeps those given to `compile` in a container."""
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        if type(metric).__name__ == "CompileMetrics" and inner is not None:
            yield from _leaves(inner)
        else:
            yield metric


def _unknown(names: list[str]) -> str:
    return (
        f"test_step returns {', '.join(names)}, which is no metric's result, so it cannot be added up over batches: "
        f"keep it in a keras.metrics.Mean that the model's metrics list, and return that metric's result()"
    )
