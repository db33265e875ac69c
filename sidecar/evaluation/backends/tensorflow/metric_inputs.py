"""Return from a traced step what metrics of Keras are updated with, for their intervals from a sample of the examples.

A metric takes part if each batch updates it once, with dense tensors that have a row for each example. For the rows of
the sample without some, it is reset, updated and read again in a trace of its own.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.evaluation.backends.tensorflow.data import array_of
from sidecar.evaluation.backends.tensorflow.graph_memory import clusters_graphs
from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.backends.tensorflow.metrics_in_turn import MASK, replaced
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

Updates = dict[str, list["_Arguments"]]
"""The arguments of the updates of each metric by one batch."""

_Arguments = tuple[list[Any], tuple[str, ...]]
"""Tensors, and the names of those that are given by name, which are the last ones."""


class MetricInputs:
    """Hold the metrics of one step whose inputs it returns.

    `metrics`: those that may have such an interval, by name; the others are left out.
    """

    def __init__(self, metrics: Mapping[str, KerasMetric]) -> None:
        self._metrics = {name: metric for name, metric in metrics.items() if metric.may_have_interval}
        self._names: dict[str, tuple[str, ...]] = {}  # of the arguments by name
        self._groups: list[list[str]] = []  # metrics that are updated with the same tensors
        self._traces: dict[str, Any] = {}
        self.width = 0
        """Number of tensors that `read` returned."""

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def drop(self, name: str) -> None:
        """Leave a metric out, because it is updated in turn from now on."""
        self._metrics.pop(name, None)
        left = [[each for each in group if each != name] for group in self._groups]
        self._groups = [group for group in left if group]

    @contextmanager
    def noted(self) -> Iterator[Updates]:
        """Note what the metrics are updated with. This works within a trace."""
        updates: Updates = {name: [] for name in self._metrics}
        with ExitStack() as changed:
            for name, metric in self._metrics.items():
                noting = partial(_noting, updates[name], metric.metric.update_state)
                changed.enter_context(replaced(metric.metric, "update_state", noting))
            yield updates

    def choose(self, updates: Updates, examples: int) -> None:
        """Leave out metrics whose arguments for a first batch of so many examples have no rows for its examples."""
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, calls in updates.items():
            if len(calls) == 1 and calls[0][0] and all(_has_rows(part, examples) for part in calls[0][0]):
                self._names[name] = calls[0][1]
                groups.setdefault(tuple(map(id, calls[0][0])), []).append(name)
        self._groups = list(groups.values())
        self._metrics = {name: self._metrics[name] for group in self._groups for name in group}

    def read(self, updates: Updates, examples: Any) -> list[list[Any]]:
        """Return, within the traced step, the number of examples and the arguments of each group of metrics."""
        read = []
        for group in self._groups:
            tensors = updates[group[0]][0][0] if len(updates[group[0]]) == 1 else []
            read.append([tf.cast(examples, tf.int64), *(tensors if all(map(_can_be_returned, tensors)) else [])])
        self.width = sum(map(len, read))
        return read

    def are_needed(self, states: SetStates) -> bool:
        """Return whether `add` takes what `read` returned: not for a set without a sample."""
        return any(has_sample(within(states, _sample(number))) for number in range(len(self._groups)))

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states of a sample for each group of metrics."""
        states: SetStates = {}
        for number, group in enumerate(self._groups):
            states |= named(_sample(number), new_sample(info, group))
        return states

    def add(self, states: SetStates, read: list[list[list[NDArray[Any]]]], firsts: Sequence[int | None]) -> None:
        """Add what `read` returned for several batches: a list with one array per batch for each tensor."""
        for number, (examples, *parts) in enumerate(read):
            own = within(states, _sample(number))
            for first, count, *arrays in zip(firsts, examples, *parts, strict=True) if has_sample(own) else ():
                if arrays and all(len(array) == count for array in arrays):
                    add_to_sample(own, first, arrays)

    def conclude(self, states: SetStates, began: float) -> None:
        """Find out which intervals would take long in an evaluation that began then, by a monotonic clock."""
        for number, group in enumerate(self._groups):
            # Traces run in other threads, too.
            seconds, spent = time.monotonic() - began, time.process_time
            require_fast(within(states, _sample(number)), self._numbers(group), seconds, spent=spent)
            self._reset(group)

    def with_intervals(self, result: MetricResult, states: SetStates, name: str, shown: str) -> MetricResult:
        """Return the result of a metric with intervals. `shown`: the name of a single number."""
        for number, group in enumerate(self._groups):
            if name in group:
                own, numbers_of = within(states, _sample(number)), self._numbers(group, shown)
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


def _can_be_returned(tensor: Any) -> bool:
    """Return whether a tensor is not one of a branch or loop within the traced step."""
    return tf.executing_eagerly() or tensor.graph is tf.compat.v1.get_default_graph()


def _has_rows(part: Any, examples: int) -> bool:
    """Return whether an argument is a dense tensor with a small row for each example, of which Keras masks nothing."""
    if not isinstance(part, tf.Tensor) or part.shape.rank == 0 or getattr(part, MASK, None) is not None:
        return False
    is_number = np.dtype(part.dtype.as_numpy_dtype).kind in "biuf"
    return is_number and len(part) == examples and array_of(part[:1]).nbytes <= MOST_BYTES_OF_ROW


def _sample(number: int) -> str:
    """Return the name of the states of the sample of a group of metrics."""
    return f"sample of inputs {number}"
