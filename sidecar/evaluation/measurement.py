"""Measure with the metrics of `sidecar.metrics` that a task lists."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.structure import as_arrays, leaves
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, Metric, MetricResult
from sidecar.evaluation.outputs import Output, by_output, join_results, pick, pick_weights, shown
from sidecar.evaluation.states import SetStates, named, within
from sidecar.evaluation.task import Task, call

_NEEDED: Final = ("name", "states", "add", "compute")
_EXAMPLE: Final = "such as [sidecar.metrics.Accuracy()]"


class Measurement:
    """Hold metrics, with the outputs that they belong to, as `chosen` returns them.

    Raises `EvaluationError` for an object that is not a metric, and for two metrics with the same name.
    """

    def __init__(self, chosen: Iterable[tuple[Output, Any]]) -> None:
        self._metrics: dict[str, tuple[Output, Metric]] = {}
        for output, metric in chosen:
            name = shown(output, str(metric.name))
            if name in self._metrics:
                raise EvaluationError("task_error", f"metrics need different names, found {name!r} again")
            self._metrics[name] = output, metric
        self._outputs = list(dict.fromkeys(output for output, _ in self._metrics.values()))

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states of all metrics."""
        states: SetStates = {}
        for name, (_, metric) in self._metrics.items():
            states |= named(name, metric.states(info))
        return states

    def arrays(self, y: Any, predictions: Any, weights: Any) -> list[NDArray[Any]]:
        """Return labels, predictions and weights of every output, always in the same order.

        There are always three arrays for each output; the weights are an empty array if there are none.
        """
        arrays: list[NDArray[Any]] = []
        for output in self._outputs:
            weight = pick_weights(weights, output)
            arrays += [_one(pick(y, output)), _one(pick(predictions, output))]
            arrays.append(np.zeros(0, np.float32) if weight is None else _one(weight))
        return arrays

    def add(self, states: SetStates, arrays: list[list[NDArray[Any]]], firsts: Sequence[int | None]) -> None:
        """Add several batches; each item of `arrays` is a list with one array per batch."""
        for name, (output, metric) in self._metrics.items():
            at = 3 * self._outputs.index(output)
            metric_states = within(states, name)
            for first, y, predictions, weights in zip(firsts, *arrays[at : at + 3], strict=True):
                metric.add(metric_states, EvalBatch(y, predictions, weights if len(weights) else None, first))

    def compute(self, states: SetStates) -> MetricResult:
        """Return the numbers of all metrics; raises `EvaluationError` if two have the same name."""
        return join_results(
            (name, output, metric.compute(within(states, name))) for name, (output, metric) in self._metrics.items()
        )


def chosen(task: Task, is_of_framework: Callable[[Any], bool] = lambda _: False) -> list[tuple[Output, Any]]:
    """Return the metrics of the task as (output, metric); none if it has a loss only.

    A metric is one of `sidecar.metrics`, or one that the framework's backend takes. Raises `EvaluationError` for
    anything else.
    """
    if task.metrics is None:
        return []
    pairs: list[tuple[Output, Any]] = []
    for output, metrics in by_output(call("Task(metrics=…)", task.metrics)).items():
        listed = [metrics] if is_of_framework(metrics) else metrics
        if not isinstance(listed, list | tuple) or not listed:
            raise EvaluationError(
                "task_error", f"Task(metrics=…) must return a list of metrics, {_EXAMPLE}, found {metrics!r:.80}"
            )
        for metric in listed:
            if isinstance(metric, type):
                raise EvaluationError(
                    "task_error", f"Task(metrics=…) lists the class {metric.__name__}: write {metric.__name__}(…)"
                )
            if not is_of_framework(metric) and not all(hasattr(metric, name) for name in _NEEDED):
                raise EvaluationError(
                    "task_error",
                    f"Task(metrics=…) must list metrics of sidecar.metrics, {_EXAMPLE}, found {metric!r:.80}; metrics "
                    f"of Keras need framework = 'tensorflow', those of torchmetrics framework = 'torch'",
                )
            pairs.append((output, metric))
    return pairs


def _one(part: Any) -> NDArray[Any]:
    """Return a part as one array. Raises `EvaluationError` if it is not a single array."""
    if part is None:
        raise EvaluationError("task_error", "labels or predictions of an output with metrics are None")
    arrays = list(leaves(as_arrays(part)))
    if len(arrays) != 1:
        raise EvaluationError("task_error", f"labels or predictions have {len(arrays)} parts: give metrics for each")
    return arrays[0]
