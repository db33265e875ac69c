"""Return from a traced step what metrics of Keras are updated with, for slices, and for intervals from a sample.

A metric takes part if each batch updates it once, with dense tensors that have a row for each example. For the rows of
a slice, or of the sample without some, it is reset, updated and read again in a trace of its own.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.evaluation.backends.tensorflow.data import array_of
from sidecar.evaluation.backends.tensorflow.graph_memory import clusters_graphs
from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.backends.tensorflow.metrics_in_turn import mask_of, replaced
from sidecar.evaluation.backends.tensorflow.sliced_metric import SlicedMetric, with_masks
from sidecar.evaluation.metrics.example_sample import (
    MOST_BYTES_OF_ROW,
    Numbers,
    add_to_sample,
    has_sample,
    new_sample,
    require_fast,
    with_intervals,
)
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult
from sidecar.evaluation.states import SetStates, named, within
from sidecar.evaluation.task import Task

Updates = dict[str, list["_Arguments"]]
"""The arguments of the updates of each metric by one batch."""

_Arguments = tuple[list[Any], tuple[str, ...]]
"""Tensors, and the names of those that are given by name, which are the last ones."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Name the metrics that are updated with the same tensors: those that have a sample, and those that have slices."""

    sampled: list[str] = field(default_factory=list)
    sliced: list[str] = field(default_factory=list)


class MetricInputs:
    """Hold the metrics of one step whose inputs it returns.

    `metrics`: all by name; those are left out that can have neither such an interval nor slices, or need none by the
    task. `task`: None if none needs them.
    """

    def __init__(self, metrics: Mapping[str, KerasMetric], task: Task | None = None) -> None:
        self._wants_intervals = task is not None and task.intervals is not False
        self._wants_slices = task is not None and any(one.slices for one in task.sets().values())
        self._metrics = {
            name: metric for name, metric in metrics.items() if self._wants_slices or self._samples(metric)
        }
        self._names: dict[str, tuple[str, ...]] = {}  # of the arguments by name
        self._groups: list[_Group] = []
        self._sliced: dict[str, SlicedMetric] = {}
        self._traces: dict[str, Any] = {}
        self.width = 0
        """Number of tensors that `read` returned."""

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def _samples(self, metric: KerasMetric) -> bool:
        return self._wants_intervals and metric.may_have_interval

    def drop(self, name: str) -> None:
        """Leave a metric out, because it is updated in turn from now on."""
        self._metrics.pop(name, None)
        self._sliced.pop(name, None)
        left = [
            _Group(*([each for each in names if each != name] for names in (group.sampled, group.sliced)))
            for group in self._groups
        ]
        self._groups = [group for group in left if group.sampled or group.sliced]

    @contextmanager
    def noted(self) -> Iterator[Updates]:
        """Note what the metrics are updated with. This works within a trace."""
        updates: Updates = {name: [] for name in self._metrics}
        with ExitStack() as changed:
            for name, metric in self._metrics.items():
                noting = partial(_noting, updates[name], metric.metric.update_state)
                changed.enter_context(replaced(metric.metric, "update_state", noting))
            yield updates

    def choose(self, updates: Updates, examples: int, tolerance: float) -> None:
        """Leave out metrics whose arguments for a first batch of so many examples have no rows for its examples.

        `tolerance`: the relative difference allowed between states of a batch and those of its parts.
        """
        groups: dict[tuple[int, ...], _Group] = {}
        for name, calls in updates.items():
            if len(calls) != 1 or not calls[0][0] or not all(_has_rows(part, examples) for part in calls[0][0]):
                continue
            (tensors, self._names[name]), metric = calls[0], self._metrics[name]
            group = groups.setdefault(tuple(map(id, tensors)), _Group())
            if self._samples(metric) and all(map(_is_small, tensors)):
                group.sampled.append(name)
            if self._wants_slices:
                cut = SlicedMetric(metric, tensors, self._names[name])
                if cut.can_be_cut(with_masks(tensors), tolerance):
                    self._sliced[name] = cut
                    group.sliced.append(name)
        self._groups = [group for group in groups.values() if group.sampled or group.sliced]
        chosen = [name for group in self._groups for name in dict.fromkeys((*group.sampled, *group.sliced))]
        self._metrics = {name: self._metrics[name] for name in chosen}

    def read(self, updates: Updates, examples: Any) -> list[list[Any]]:
        """Return, within the traced step, the number of examples and the arguments of each group of metrics."""
        read = []
        for group in self._groups:
            calls = updates[(*group.sampled, *group.sliced)[0]]
            tensors = with_masks(calls[0][0]) if len(calls) == 1 else []
            if not all(_can_be_returned(tensor, examples) for tensor in tensors):
                tensors = []
            for name in group.sliced:
                self._sliced[name].prepare(tensors, examples)
            read.append([tf.cast(examples, tf.int64), *tensors])
        self.width = sum(map(len, read))
        return read

    def are_needed(self, states: SetStates) -> bool:
        """Return whether `add` takes what `read` returned: not for a set without a sample and without slices."""
        return any(has_sample(within(states, _sample(number))) for number in range(len(self._groups))) or any(
            within(states, _slices(name)) for name in self._sliced
        )

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states of a sample for each group of metrics, and of the slices of each metric."""
        states: SetStates = {}
        for number, group in enumerate(self._groups):
            states |= named(_sample(number), new_sample(info, group.sampled))
            for name in group.sliced:
                states |= named(_slices(name), self._sliced[name].states(info))
        return states

    def add(self, states: SetStates, read: list[list[list[NDArray[Any]]]], firsts: Sequence[int | None]) -> None:
        """Add what `read` returned for several batches: a list with one array per batch for each tensor."""
        for number, (group, (examples, *parts)) in enumerate(zip(self._groups, read, strict=True)):
            own = within(states, _sample(number))
            for first, count, *arrays in zip(firsts, examples, *parts, strict=True) if has_sample(own) else ():
                if arrays and all(len(array) == count for array in arrays):
                    add_to_sample(own, first, arrays)
            for name in group.sliced:
                if of_slices := within(states, _slices(name)):
                    self._sliced[name].add(of_slices, parts, list(map(int, examples)), firsts)

    def with_slices(self, result: MetricResult, states: SetStates, name: str, shown: str) -> MetricResult:
        """Return the result of a metric with the numbers of slices. `shown`: the name of a single number."""
        if name not in self._sliced:
            return result
        return self._sliced[name].with_slices(result, within(states, _slices(name)), shown)

    def conclude(self, states: SetStates, began: float) -> None:
        """Find out which intervals would take long in an evaluation that began then, by a monotonic clock."""
        for number, group in enumerate(self._groups):
            # Traces run in other threads, too.
            seconds, spent = time.monotonic() - began, time.process_time
            require_fast(within(states, _sample(number)), self._numbers(group.sampled), seconds, spent=spent)
            self._reset(group.sampled)

    def with_intervals(self, result: MetricResult, states: SetStates, name: str, shown: str) -> MetricResult:
        """Return the result of a metric with intervals. `shown`: the name of a single number."""
        for number, group in enumerate(self._groups):
            if name in group.sampled:
                own, numbers_of = within(states, _sample(number)), self._numbers(group.sampled, shown)
                result = with_intervals(result, own, numbers_of, name, is_area=self._metrics[name].is_area)
                self._reset([name])
        return result

    def _numbers(self, group: Sequence[str], shown: str = "") -> dict[str, Numbers]:
        return {name: partial(self._numbers_of, name, shown) for name in group}

    def _reset(self, group: Sequence[str]) -> None:
        for name in group:
            self._metrics[name].metric.reset_state()

    def _numbers_of(self, name: str, shown: str, arrays: Sequence[NDArray[Any]], times: int) -> dict[str, float]:
        """Return the numbers of a metric for its arguments as one batch, each row of which comes so many times."""
        tensors = [tf.constant(np.concatenate([array] * times)) for array in arrays]
        metric, names = self._metrics[name], self._names[name]
        if clusters_graphs():  # the last bits of a trace would depend on its calls before
            return metric.single_numbers(metric.result_of(names, *tensors), shown)
        if name not in self._traces:
            autograph = is_keras_2(metric.metric)
            self._traces[name] = tf.function(partial(metric.result_of, names), autograph=autograph)
        specs = [tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in tensors]
        return metric.single_numbers(self._traces[name].get_concrete_function(*specs)(*tensors), shown)


def _noting(updates: list[_Arguments], update_state: Any, *arguments: Any, **named_arguments: Any) -> Any:
    given = {name: part for name, part in named_arguments.items() if part is not None}
    updates.append(([*arguments, *given.values()], tuple(given)))
    return update_state(*arguments, **named_arguments)


def _can_be_returned(tensor: Any, examples: Any) -> bool:
    """Return whether a tensor is not one of a branch or loop within the traced step, and has no fixed number of rows.

    `examples`: the number of examples of a batch, which may be fixed itself.
    """
    if tf.executing_eagerly():
        return True
    is_fixed = tensor.shape.rank is not None and tensor.shape[0] is not None
    is_of_step = tensor.graph is tf.compat.v1.get_default_graph()
    return is_of_step and (not is_fixed or tf.get_static_value(examples) is not None)


def _has_rows(part: Any, examples: int) -> bool:
    """Return whether an argument is a dense tensor with a row for each example, as has its mask of Keras, if any."""
    return all(
        isinstance(tensor, tf.Tensor) and tensor.shape.rank != 0 and len(tensor) == examples
        for tensor in with_masks([part])
    )


def _is_small(part: Any) -> bool:
    """Return whether an argument holds numbers, few for each example, of which Keras masks nothing."""
    is_number = np.dtype(part.dtype.as_numpy_dtype).kind in "biuf"
    return is_number and mask_of(part) is None and array_of(part[:1]).nbytes <= MOST_BYTES_OF_ROW


def _sample(number: int) -> str:
    """Return the name of the states of the sample of a group of metrics."""
    return f"sample of inputs {number}"


def _slices(name: str) -> str:
    """Return the name of the states of the slices of a metric."""
    return f"slices of {name}"
