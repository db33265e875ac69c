"""Measure with the metrics of `sidecar.metrics` that a task lists."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.plain_arrays import plain_array
from sidecar.evaluation.data.structure import as_arrays, leaves
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, Metric, MetricResult
from sidecar.evaluation.outputs import Output, by_output, join_results, pick, pick_weights, shown
from sidecar.evaluation.states import SetStates, named, within
from sidecar.evaluation.task import Task, call

_NEEDED: Final = ("name", "states", "add", "compute")
_ARRAYS: Final = 4  # of each output
_NUMBERS: Final = bool | int | float | np.generic
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

    def arrays(self, y: Any, predictions: Any, weights: Any, examples: int) -> list[NDArray[Any]]:
        """Return what metrics need of every output of a batch of so many examples, always in the same order.

        There are always four arrays for each output: labels, predictions, weights, which are an empty array if there
        are none, and three numbers: the number of examples, and whether labels and predictions are lists.
        """
        arrays: list[NDArray[Any]] = []
        for output in self._outputs:
            weight = pick_weights(weights, output)
            parts = [_rows(part, output, examples) for part in (y, predictions)]
            arrays += [rows for rows, _ in parts]
            arrays.append(np.zeros(0, np.float32) if weight is None else _one(weight))
            arrays.append(np.array([examples, *(is_list for _, is_list in parts)], np.int64))
        return arrays

    def add(self, states: SetStates, arrays: list[list[NDArray[Any]]], firsts: Sequence[int | None]) -> None:
        """Add several batches; each item of `arrays` is a list with one array per batch."""
        for name, (output, metric) in self._metrics.items():
            at = _ARRAYS * self._outputs.index(output)
            metric_states = within(states, name)
            for first, y, predictions, weights, (examples, *lists) in zip(
                firsts, *arrays[at : at + _ARRAYS], strict=True
            ):
                given = weights if len(weights) else None
                metric.add(
                    metric_states,
                    EvalBatch(y, predictions, given, first, int(examples), (bool(lists[0]), bool(lists[1]))),
                )

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


def _rows(structure: Any, output: Output, examples: int) -> tuple[NDArray[Any], bool]:
    """Return labels or predictions of an output, and whether they are a list of any objects, one for each row."""
    part = structure if output is None and is_list_of_rows(structure, examples) else pick(structure, output)
    if not is_list_of_rows(part, examples):
        return _one(part), False
    if all(isinstance(item, _NUMBERS) or (isinstance(item, np.ndarray) and not item.ndim) for item in part):
        return plain_array(part), False
    rows = np.empty(len(part), object)
    for number, item in enumerate(part):
        rows[number] = item
    return rows, True


def is_list_of_rows(part: Any, examples: int) -> bool:
    """Return whether a part is a list with an object for each row, such as a text, and not a list of outputs."""
    if not isinstance(part, list | tuple) or not part:
        return False
    if all(isinstance(item, _NUMBERS | str | bytes) for item in part):
        return True
    if len(part) != examples:
        return False
    is_of_outputs = all(isinstance(item, np.ndarray) and item.shape[:1] == (examples,) for item in part)
    return not is_of_outputs or (examples == 1 and isinstance(part, list))


def _one(part: Any) -> NDArray[Any]:
    """Return a part as one array. Raises `EvaluationError` if it is not a single array."""
    if part is None:
        raise EvaluationError("task_error", "labels or predictions of an output with metrics are None")
    arrays = list(leaves(as_arrays(part)))
    if len(arrays) != 1:
        raise EvaluationError("task_error", f"labels or predictions have {len(arrays)} parts: give metrics for each")
    return arrays[0]
