"""Update a metric of Keras with the rows of each slice of a batch, given what a traced step updated it with.

The metric begins with its identity for each slice of each batch, so its states depend neither on workers nor on which
batches are added together. One call of a trace loops over the slices of several batches: calls for each cost more. A
metric that counts is updated with the rows of several batches at once, which gives the same bits; its weights are
divided into few summands, of which sums have no rounding. Another trace loops over the states of all slices for their
results.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.backends.tensorflow.data import array_of
from sidecar.evaluation.backends.tensorflow.graph_memory import clusters_graphs
from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric, named_numbers
from sidecar.evaluation.backends.tensorflow.libraries import class_named, is_keras_2, is_written_by_keras
from sidecar.evaluation.backends.tensorflow.metrics_in_turn import MASK, mask_of
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult, value
from sidecar.evaluation.states import KeyedStates, SetStates

_BYTES: Final = 16 << 20  # of the states that one call returns
_BYTES_OF_FLOAT32: Final = 4
_MATRIX: Final = 2  # dimensions of scores of classes
_WITH_WEIGHTS: Final = 3  # arguments
_BITS: Final = 24  # of float32
_FEWEST_BITS: Final = 6  # of a summand of the weights: fewer would make too many of them
_LEAST_EXPONENT: Final = -100  # of such a summand: far from numbers that TensorFlow takes for 0
_COUNTING: Final = (
    *("_ConfusionMatrixConditionCount", "Precision", "Recall", "SensitivitySpecificityBase", "AUC", "_IoUBase"),
    "FBetaScore",
)
"""Classes of Keras that add up weights, given labels that are whole numbers; they count without weights."""


class SlicedMetric:
    """Hold one metric that each batch updates once, with dense tensors that have a row for each example.

    `metric`: the metric. `tensors`: its arguments for a first batch. `names`: the names of the last ones of them.
    """

    def __init__(self, metric: KerasMetric, tensors: Sequence[Any], names: Sequence[str]) -> None:
        self._metric, self._names, self._arguments = metric, names, len(tensors)
        self._masked = [place for place, tensor in enumerate(tensors) if mask_of(tensor) is not None]
        self._bytes = max(1, sum(array.nbytes for array in metric.identity))
        self._specs: list[Any] | None = None  # of a trace; None: the metric is updated without one
        self._trace: Any = None
        self._result_trace: Any = None
        self._is_result_traced = False  # without being tried again

    def can_be_cut(self, tensors: Sequence[Any], tolerance: float) -> bool:
        """Return whether states are small sums, and those of a batch are the sum of those of its even and odd rows.

        `tensors`: its arguments for a first batch, followed by their masks.
        """
        if not KeyedStates.can_hold(self._metric.states(EvalSetInfo(None, Shard(0, 1)))):
            return False
        rows = np.arange(len(tensors[0]))
        try:
            whole, *halves = (self._updated(tensors, part) for part in (rows, rows[::2], rows[1::2]) if len(part))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - a metric may take whole batches only
            return False
        finally:
            self._metric.metric.reset_state()
        return len(rows) == 1 or not self._metric.depends_on_batches(whole, halves, tolerance)

    def prepare(self, tensors: Sequence[Any], examples: Any) -> None:
        """Note, within the traced step, the shapes that `add` will get, as they are known there. Empty: none."""
        is_fixed = tf.executing_eagerly() or tf.get_static_value(examples) is not None or clusters_graphs()
        self._trace = self._specs = None
        if not is_fixed and all(tensor.shape.rank is not None for tensor in tensors):
            self._specs = [tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in tensors]

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return the new state of the slices of a set; nothing for a set without slices."""
        return sliced.states_by_slice(self._metric.states, info)

    def add(
        self,
        states: SetStates,
        tensors: Sequence[Sequence[NDArray[Any]]],
        examples: Sequence[int],
        firsts: Sequence[int | None],
    ) -> None:
        """Add the rows of each slice of several batches: for each tensor a list with one array per batch."""
        name = str(self._metric.metric.name)
        if not tensors:
            raise TaskError(
                f"metric {name!r}: slices are for metrics that test_step updates with a row for each example, outside "
                f"of branches and loops: leave Task(slices=…) out"
            )
        batches = list(zip(*tensors, strict=True))
        for batch, count in zip(batches, examples, strict=True):
            sliced.require_rows(name, count, set(map(len, batch)))
        are_alike = len({tuple((part.shape[1:], part.dtype) for part in batch) for batch in batches}) == 1
        for together in [slice(None)] if are_alike else [slice(place, place + 1) for place in range(len(batches))]:
            arrays = [np.concatenate(of_tensor[together]) for of_tensor in tensors]
            self._add(states, arrays, sliced.joined_places(firsts[together], examples[together]), examples[together])

    def _add(
        self, states: SetStates, arrays: Sequence[NDArray[Any]], places: NDArray[np.intp], examples: Sequence[int]
    ) -> None:
        """Add the rows of each slice of batches that lie one after the other in arrays."""
        size, most = self._size_of_row(arrays), max(1, _BYTES // self._bytes)
        of_row, shared = np.repeat(np.arange(len(examples)), examples), [tf.constant(array) for array in arrays]
        for sums, numbers in sliced.divided(states, places):
            in_any = np.flatnonzero(numbers >= 0)
            largest = int(np.bincount(numbers[in_any]).max())
            summands = self._summands(arrays, largest * size) if size else None
            keys = numbers[in_any] + (0 if summands else (numbers.max() + 1) * of_row[in_any])
            order = np.argsort(keys, kind="stable")
            starts = np.unique(keys[order], return_index=True)[1]
            parts = np.split(in_any[order], starts[1:])
            for tensors in ([*shared[:-1], tf.constant(each)] for each in summands) if summands else [shared]:
                for first in range(0, len(parts), most):
                    some = parts[first : first + most]
                    self._metric.add_parts(sums, numbers[[rows[0] for rows in some]], self._changes(tensors, some))

    def _size_of_row(self, arrays: Sequence[NDArray[Any]]) -> float:
        """Return the most that a row of these arguments adds to a state, where that is a whole number; else 0.

        Any weight is a factor. Labels are whole numbers, and an accuracy has one value for each row.
        """
        metric, (labels, predictions, *others) = self._metric.metric, arrays
        is_wide = all(array.dtype.itemsize >= _BYTES_OF_FLOAT32 for array in self._metric.identity)
        has_others = len(others) > self._has_weights or getattr(metric, "label_weights", None) is not None
        if has_others or not is_wide or not is_written_by_keras(type(metric)):
            return 0
        name, rows = type(metric).__name__, len(labels)
        if class_named(metric, "MeanMetricWrapper") is not None and name.endswith("Accuracy"):
            scores = predictions[:, 0] if "Categorical" in name and predictions.ndim == _MATRIX else predictions
            chosen = labels[:, 0] if name.startswith(("Categorical", "TopK")) and labels.ndim == _MATRIX else labels
            return int(max(scores.size, chosen.size) == rows)
        counts = any(class_named(metric, counting) is not None for counting in _COUNTING)
        if not counts or not (labels == np.rint(labels)).all():
            return 0
        return float(np.abs(labels).max(initial=1)) * max(labels.size, predictions.size) / max(rows, 1)

    @property
    def _has_weights(self) -> bool:
        """Return whether the third argument is the weights."""
        return self._arguments == _WITH_WEIGHTS and self._names in ((), ("sample_weight",))

    def _summands(self, arrays: Sequence[NDArray[Any]], size: float) -> list[NDArray[Any]] | None:
        """Return arrays to take in place of the last one, whose sums are exact; None if there are none.

        Without weights it is the last array itself. `size`: the most that a part of all weights 1 adds to a state.
        """
        bits = _BITS - math.ceil(math.log2(size))
        if not self._has_weights:
            return [arrays[-1]] if bits > 0 else None
        are_float32 = all(array.dtype == np.float32 for array in (arrays[-1], *self._metric.identity))
        return summands_of(arrays[-1], bits) if are_float32 and bits >= _FEWEST_BITS else None

    def _changes(self, tensors: Sequence[Any], rows: Sequence[NDArray[np.intp]]) -> list[NDArray[Any]]:
        """Return the variables after an update with each of these rows, stacked."""
        if self._specs is None:
            return [np.stack(each) for each in zip(*(self._updated(tensors, part) for part in rows), strict=True)]
        if self._trace is None:
            size, autograph = tf.TensorSpec([None], tf.int64), is_keras_2(self._metric.metric)
            function = tf.function(self._loop, input_signature=[self._specs, size, size], autograph=autograph)
            self._trace = function.get_concrete_function()
        ends = np.cumsum([0, *map(len, rows)])
        return list(map(array_of, self._trace(tensors, tf.constant(np.concatenate(rows)), tf.constant(ends))))

    def _loop(self, tensors: Sequence[Any], rows: Any, ends: Any) -> Any:
        """Return, within a trace, the variables after each part, whose rows end at these places of all rows."""

        def update(number: Any) -> list[Any]:
            return self._update([tf.gather(each, rows[ends[number] : ends[number + 1]]) for each in tensors])

        of_state = [tf.TensorSpec(array.shape, array.dtype) for array in self._metric.identity]
        return _mapped(update, tf.range(tf.shape(ends)[0] - 1), of_state)

    def with_slices(self, result: MetricResult, states: SetStates, shown: str) -> MetricResult:
        """Return the result of the whole set with the numbers of each slice. `shown`: the name of a single number."""
        by_slice = states.get(sliced.BY_SLICE)
        if not isinstance(by_slice, KeyedStates):
            return result
        by_label = dict(by_slice.items())
        of_slices = list(by_label.values())
        if self._metric.has_formula and len(of_slices) > 1 and not clusters_graphs():
            most = max(2, _BYTES // self._bytes)
            numbers = [
                named_numbers(self._metric.metric, shown, found, shown)
                for first in range(0, len(of_slices), most)
                for found in self._results([self._metric.totals(one) for one in of_slices[first : first + most]])
            ]
            self._metric.metric.reset_state()
        else:
            numbers = [self._metric.numbers(one, shown) for one in of_slices]
        values = [{name: value(number, result.values[name].goal) for name, number in each.items()} for each in numbers]
        return replace(result, slices=dict(zip(by_label, values, strict=True)))

    def _results(self, totals: Sequence[Sequence[NDArray[Any]]]) -> list[Any]:
        """Return the result for each of these states: from a trace, if that gives the bits of the first one without.

        A formula of Keras is tried so once; one of a user may look at what changes between two evaluations.
        """
        if self._is_result_traced:
            return self._traced_results(totals)
        first = self._metric.result_after(totals[0])
        if all(map(tf.is_tensor, tf.nest.flatten(first))):
            try:
                traced = self._traced_results(totals, first)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - a formula may look at numbers, which a trace does not have
                traced = []
            plain = tf.nest.map_structure(array_of, first)
            if traced and all(map(_is_same, tf.nest.flatten(plain), tf.nest.flatten(traced[0]))):
                self._is_result_traced = is_written_by_keras(type(self._metric.metric).result)
                return traced
        return [first, *map(self._metric.result_after, totals[1:])]

    def _traced_results(self, totals: Sequence[Sequence[NDArray[Any]]], first: Any = None) -> list[Any]:
        """Return the results from a trace. `first`: one of them, before there is a trace."""
        stacked = [np.stack(arrays) for arrays in zip(*totals, strict=True)]
        if self._result_trace is None:
            of_result = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), first)

            def results(states: list[Any]) -> Any:
                return _mapped(self._metric.result_after, states, of_result)

            specs = [tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in stacked]
            autograph = is_keras_2(self._metric.metric)
            self._result_trace = tf.function(results, input_signature=[specs], autograph=autograph)
        arrays = tf.nest.map_structure(array_of, self._result_trace(list(map(tf.constant, stacked))))
        return [tf.nest.map_structure(itemgetter(number), arrays) for number in range(len(totals))]

    def _updated(self, tensors: Sequence[Any], rows: NDArray[np.intp]) -> list[NDArray[Any]]:
        return list(map(array_of, self._update([tf.gather(tensor, rows) for tensor in tensors])))

    def _update(self, tensors: list[Any]) -> list[Any]:
        for place, mask in zip(self._masked, tensors[self._arguments :], strict=True):
            setattr(tensors[place], MASK, mask)
        self._metric.update(self._names, *tensors[: self._arguments])
        return self._metric.read()


def _mapped(function: Callable[[Any], Any], parts: Any, signature: Any) -> Any:
    """Return, within a trace, what a function returns for each part; one after the other, as all change one metric.

    `tf.map_fn` sets a caching device in the present scope, and leaves it there if the function cannot be traced; then
    Keras 2 could make no variables any more. So it gets a scope of its own.
    """
    with tf.compat.v1.variable_scope("slices"):
        return tf.map_fn(function, parts, fn_output_signature=signature, parallel_iterations=1)


def summands_of(weights: NDArray[np.float32], bits: int) -> list[NDArray[np.float32]] | None:
    """Return arrays whose sum the weights are: each holds whole numbers of so many bits, times one power of two.

    None for weights that are not finite, or so small that a summand would be near 0.
    """
    rest = weights.astype(np.float64)
    if not np.isfinite(rest).all():
        return None
    exponent, summands = int(np.frexp(np.abs(rest).max(initial=0.0))[1]), [np.zeros_like(weights)]
    while rest.any():
        exponent -= bits
        if exponent < _LEAST_EXPONENT:
            return None
        summand = np.trunc(np.ldexp(rest, -exponent))
        rest -= (summand := np.ldexp(summand, exponent))
        summands.append(summand.astype(np.float32))
    return summands[1:] or summands


def _is_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def with_masks(tensors: Sequence[Any]) -> list[Any]:
    """Return tensors, followed by the masks that Keras attached to some of them."""
    return [*tensors, *(mask for mask in map(mask_of, tensors) if mask is not None)]


def missing_in_slices(result: MetricResult) -> tuple[str, ...]:
    """Return a note on the numbers of a set that its slices do not have; nothing for a set without slices."""
    found = {name for numbers in result.slices.values() for name in numbers}
    missing = [name for name in result.values if name not in found] if result.slices else []
    if not missing:
        return ()
    note = (
        f"no numbers by slice: {', '.join(missing)}; metrics of Keras have them if each batch updates them once, with "
        f"a row for each example, and if their states are small sums that do not depend on batches"
    )
    return (note,)
