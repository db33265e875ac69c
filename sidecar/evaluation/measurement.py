"""Measure with the metrics of `sidecar.metrics` that a task lists."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.batch_dependence import UNTESTED
from sidecar.evaluation.data.plain_arrays import plain_array
from sidecar.evaluation.data.structure import as_arrays, leaves
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.metric_additivity import contents_of, metric_depends_on_batches, states_differ, states_of
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.foreign import InTurn, as_in_turn
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, Metric, MetricResult
from sidecar.evaluation.outputs import Output, by_output, join_results, pick, pick_weights, shown
from sidecar.evaluation.states import SetStates, named, within
from sidecar.evaluation.task import Task, call
from sidecar.system.plain_text import shortened

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
                raise task_error(f"metrics need different names, found {name!r} again")
            self._metrics[name] = output, metric
        self._outputs = list(dict.fromkeys(output for output, _ in self._metrics.values()))

    @property
    def takes_one_output(self) -> bool:
        """Return whether a metric belongs to the only output."""
        return None in self._outputs

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states of all metrics."""
        states: SetStates = {}
        for name, (_, metric) in self._metrics.items():
            states |= named(name, sliced.new_states(metric, info))
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
            of_output = zip(firsts, *arrays[at : at + _ARRAYS], strict=True)
            sliced.add(metric, metric_states, [_batch_of(of_batch, first) for first, *of_batch in of_output])

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all metrics."""
        return tuple(self._metrics)

    @property
    def in_turn(self) -> dict[str, str]:
        """Return the metrics that have no states to add up, with the reason."""
        return {name: metric.reason for name, (_, metric) in self._metrics.items() if isinstance(metric, InTurn)}

    def predictions(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the predictions of every output among the arrays of a batch."""
        return list(arrays[1::_ARRAYS])

    def depending(self, arrays: Sequence[NDArray[Any]]) -> set[str]:
        """Return the names of metrics whose states for a batch are not those of its halves.

        The name is `UNTESTED` if labels or weights of a metric cannot be divided.
        """
        found = {name: metric_depends_on_batches(metric, batch) for name, metric, batch in self._each_of_sums(arrays)}
        return {UNTESTED if depends is None else name for name, depends in found.items() if depends is not False}

    def differing(self, whole: Sequence[NDArray[Any]], halves: Sequence[Sequence[NDArray[Any]]]) -> set[str]:
        """Return the names of metrics whose states for a batch are not those for halves, predicted on their own."""
        parts = [[batch for _, _, batch in self._each_of_sums(half)] for half in halves]
        return {
            name
            for (name, metric, batch), *batches in zip(self._each_of_sums(whole), *parts, strict=True)
            if states_differ(metric, states_of(metric, batch), states_of(metric, *batches))
        }

    def contents(self, arrays: Sequence[NDArray[Any]]) -> dict[str, str]:
        """Return the states of each metric for one batch, as texts."""
        return {name: contents_of(metric, batch) for name, metric, batch in self._each_of_sums(arrays)}

    def _each_of_sums(self, arrays: Sequence[NDArray[Any]]) -> Iterator[tuple[str, Metric, EvalBatch]]:
        """Yield each metric that adds up with the arrays of its output, as the first batch of an eval set."""
        for name, (output, metric) in self._metrics.items():
            if isinstance(metric, InTurn):
                continue
            at = _ARRAYS * self._outputs.index(output)
            yield name, metric, _batch_of(arrays[at : at + _ARRAYS], 0)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the numbers of all metrics; raises `EvaluationError` if two have the same name."""
        return join_results(
            (name, output, sliced.computed(metric, within(states, name)))
            for name, (output, metric) in self._metrics.items()
        )


def chosen(task: Task, is_of_framework: Callable[[Any], bool] = lambda _: False) -> list[tuple[Output, Any]]:
    """Return the metrics of the task as (output, metric); none if it has a loss only.

    A metric is one of `sidecar.metrics`, or one that the framework's backend takes. Functions and objects of other
    libraries become `InTurn`. Raises `EvaluationError` for anything else.
    """
    if task.metrics is None:
        return []
    pairs: list[tuple[Output, Any]] = []
    for output, metrics in by_output(call("Task(metrics=…)", task.metrics)).items():
        listed = [metrics] if is_of_framework(metrics) else metrics
        if not isinstance(listed, list | tuple) or not listed:
            raise task_error(f"Task(metrics=…) must return a list of metrics, {_EXAMPLE}, found {shortened(metrics)}")
        for metric in listed:
            if isinstance(metric, type):
                raise task_error(f"Task(metrics=…) lists the class {metric.__name__}: write {metric.__name__}(…)")
            is_known = is_of_framework(metric) or all(hasattr(metric, needed) for needed in _NEEDED)
            own = metric if is_known else as_in_turn(metric)
            if not is_known and not isinstance(own, InTurn):
                raise task_error(
                    f"Task(metrics=…) must list metrics of sidecar.metrics, {_EXAMPLE}, or functions of (y_true, "
                    f"y_pred), found {shortened(metric)}"
                )
            pairs.append((output, own))
    return pairs


def _batch_of(arrays: Sequence[NDArray[Any]], first: int | None) -> EvalBatch:
    """Return the batch of one output, for the arrays that `Measurement.arrays` returned for it."""
    y, predictions, weights, (examples, *lists) = arrays
    given = weights if len(weights) else None
    return EvalBatch(y, predictions, given, first, int(examples), (bool(lists[0]), bool(lists[1])))


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


def rows_note(rows: int, examples: int, differing: int) -> tuple[str, ...]:
    """Return a note on rows that are not examples, such as nodes or boxes, in a number of differing batches."""
    if not differing:
        return ()
    note = (
        f"labels and predictions have {rows:,} rows for {examples:,} examples: each row counts alike, "
        f"and there are no intervals, since rows of one example are not independent"
    )
    return (note,)


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
        raise task_error("labels or predictions of an output with metrics are None")
    arrays = list(leaves(as_arrays(part)))
    if len(arrays) != 1:
        raise task_error(f"labels or predictions have {len(arrays)} parts: give metrics for each")
    return arrays[0]
