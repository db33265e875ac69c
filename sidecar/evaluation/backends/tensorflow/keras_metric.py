"""Turn a Keras metric into an exact state: its change by one batch, summed outside the float32 variables of Keras.

Keras 3 and tf_keras are treated alike: inside the traced step the metric is reset, updated, and read. A state is a sum
unless the metric declares another reduction: `sidecar_reduction = "max"`, or a dict from the names of its variables.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.evaluation.backends.tensorflow.data import array_of
from sidecar.evaluation.backends.tensorflow.libraries import class_named, is_written_by_keras
from sidecar.evaluation.backends.tensorflow.rounding import is_near, is_rounded_sum
from sidecar.evaluation.failures import CannotBeMergedError, task_error
from sidecar.evaluation.metrics.in_turn import held_by
from sidecar.evaluation.metrics.metric import EvalSetInfo
from sidecar.evaluation.rank_evaluation import MAX_CLASSES
from sidecar.evaluation.states import ExactSum, MinMax, SetStates, State
from sidecar.protocol.records import Goal

_GOALS: Final[dict[str | None, Goal]] = {"up": "max", "down": "min"}
_OF_KERAS: Final = ("_call_result", "_obj_reference_counts_dict")  # attributes that tf_keras itself changes
_DECLARED: Final = "sidecar_reduction"
_NOT_COVERED: Final = ("Sum", "_ConfusionMatrixConditionCount", "Precision", "Recall", "SensitivitySpecificityBase")
"""Totals, ratios of counts that may be few, and numbers at a threshold that is chosen as the best one."""

_MERGE: Final[dict[str, Callable[..., Any]]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class KerasMetric:
    """Give one metric of Keras an identity, mergeable states and final numbers.

    `metric`: the metric. It must have been updated once, so that its variables exist. `label`: a name for messages. The
    default is made of name and class of the metric.
    """

    def __init__(self, metric: Any, label: str | None = None) -> None:
        self.metric = metric
        self._label = label or label_of(metric)
        self._by_name(metric.result(), "")  # refuses too many results now, not after the whole evaluation
        metric.reset_state()
        self.identity = self.values()
        if not self.identity:
            raise CannotBeMergedError(self._label, "keeps no variables that could be added up over workers")
        self._held = held_by(metric)
        self.reductions = self._declared()
        for array, reduction in zip(self.identity, self.reductions, strict=True):
            if reduction == "sum" and np.any(array):
                raise CannotBeMergedError(
                    self._label, "does not start from zero, so its parts cannot be added up over workers"
                )

    def values(self) -> list[Any]:
        """Return the present values of the variables as arrays; must be called outside a trace."""
        return [array_of(variable) for variable in self.metric.variables]

    def require_additive(self, in_turn: list[Any], changes: Sequence[list[Any]], additions: int = 0) -> None:
        """Raise `EvaluationError` unless the states after several batches are the merged changes of these batches.

        A metric that stores its last value, or a largest value without declaring it, is refused.

        `in_turn`: the states after all batches, one after the other. `changes`: the states after each batch alone.
        `additions`: the number of values that a batch may add one by one.
        """
        states = zip(self.metric.variables, self.reductions, in_turn, *changes, strict=True)
        for variable, reduction, after_all, *parts in states:
            if not _is_merged(reduction, after_all, parts, additions):
                verb = "add up" if reduction == "sum" else f"keep the {reduction} of"
                raise CannotBeMergedError(
                    self._label,
                    f"does not {verb} what it sees from batch to batch (state {variable.name!r}), so the states of "
                    f"several workers cannot be merged",
                )

    def require_no_other_state(self) -> None:
        """Raise `EvaluationError` if updates changed something that the variables do not hold, and reset these.

        Such as an attribute `self.batches += 1`, a `tf.Variable` that Keras 3 does not track, or a hidden inner metric.
        It must be called outside a trace, after an update.
        """
        self.reset()
        if is_written_by_keras(type(self.metric).update_state):
            return
        held = held_by(self.metric).items()
        if kept := [name for name, content in held if name not in _OF_KERAS and content != self._held.get(name)]:
            raise CannotBeMergedError(
                self._label,
                f"keeps {', '.join(map(repr, kept))} outside of its variables (add_weight makes these), so the states "
                f"of several workers cannot be merged",
            )

    def without(self, states: SetStates, change: Sequence[Any]) -> list[Any]:
        """Return the states over all batches as arrays, without the change by one of these batches."""
        arrays = []
        for index, (array, reduction, part) in enumerate(zip(self.identity, self.reductions, change, strict=True)):
            state = states[str(index)]
            if reduction == "sum":
                rest = ExactSum(array.shape, str(array.dtype))
                assert isinstance(state, ExactSum)
                rest.merge(state)
                with np.errstate(over="ignore"):  # of the smallest integer
                    rest.add(-part.astype(np.int64) if rest.is_integral else -part)
                state = rest
            arrays.append(_value_of(state).astype(array.dtype))
        return arrays

    def repeated(self, times: int, change: Sequence[Any]) -> list[Any]:
        """Return the states as arrays after batches that all change them in this way."""
        return [
            (part.astype(np.float64) * times).astype(part.dtype) if reduction == "sum" else part
            for reduction, part in zip(self.reductions, change, strict=True)
        ]

    def depends_on_batches(self, whole: list[Any], parts: Sequence[list[Any]], tolerance: float) -> bool:
        """Return whether the states after a whole batch differ from the merged states after its two parts.

        They differ for a mean of batch means.
        """
        states = zip(self.reductions, whole, *parts, strict=True)
        return not all(
            is_near(after_whole, _MERGE[reduction](first, second), tolerance)
            for reduction, after_whole, first, second in states
        )

    def _declared(self) -> list[str]:
        """Return the reduction of every variable."""
        declared = getattr(self.metric, _DECLARED, "sum")
        names = [str(variable.name) for variable in self.metric.variables]
        by_name = declared if isinstance(declared, Mapping) else dict.fromkeys(names, declared)
        if wrong := {
            name: reduction for name, reduction in by_name.items() if name not in names or reduction not in _MERGE
        }:
            raise task_error(
                f"{self._label} declares {_DECLARED} {wrong}: write one of {', '.join(_MERGE)} for its variables "
                f"{', '.join(names)}"
            )
        return [by_name.get(name, "sum") for name in names]

    def reset(self, start: Sequence[Any] | None = None) -> None:
        """Set the variables, within the traced step, to `start` or to the identity."""
        for variable, value in zip(self.metric.variables, start or self.identity, strict=True):
            variable.assign(tf.cast(tf.convert_to_tensor(value), variable.dtype))

    def read(self) -> list[Any]:
        """Return the variables, within the traced step: after `reset` and an update, the change by one batch."""
        return [tf.identity(tf.convert_to_tensor(variable)) for variable in self.metric.variables]

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return empty states, one for each variable."""
        return {
            str(index): ExactSum(array.shape, str(array.dtype))
            if reduction == "sum"
            else MinMax(array.shape, str(array.dtype), "max" if reduction == "max" else "min", info.shard)
            for index, (array, reduction) in enumerate(zip(self.identity, self.reductions, strict=True))
        }

    def add(self, states: SetStates, changes: list[list[NDArray[Any]]]) -> None:
        """Add the changes by several batches: for each variable, a list with one array per batch."""
        for index, arrays in enumerate(changes):
            state = states[str(index)]
            assert isinstance(state, ExactSum | MinMax)
            with self._within_64_bits(index):
                state.add_all(np.stack(arrays))

    def add_parts(self, sums: Mapping[str, ExactSum], parts: NDArray[np.intp], changes: list[NDArray[Any]]) -> None:
        """Add changes, for each variable an array (m, …), to sums by part. `parts`: the number of each one's part."""
        for index, array in enumerate(changes):
            state, size = sums[str(index)], array[0].size
            state.part_of_row = parts
            with self._within_64_bits(index):
                elements, rows = np.tile(np.arange(size), len(parts)), np.repeat(np.arange(len(parts)), size)
                state.add_at(elements, array.reshape(-1), rows)

    @contextmanager
    def _within_64_bits(self, index: int) -> Iterator[None]:
        try:
            yield
        except OverflowError as error:
            name = self.metric.variables[index].name
            raise task_error(
                f"{self._label} counts in whole numbers (state {name!r}), and these grow too large for 64 bits: "
                f"{error}; check that the weights are not too large"
            ) from error

    @property
    def divides(self) -> bool:
        """Return whether the result is total divided by count, as in the class `Mean` of Keras."""
        return _result_is_inherited(self.metric, "Mean")

    def numbers(self, states: SetStates, shown: str) -> dict[str, float]:
        """Return the final numbers by name: a mean is divided in float64, other numbers come from `result()` of Keras.

        `states`: the states over all batches. `shown`: the name of a single number. Several numbers have their own
        names, or `shown` and their index.
        """
        sums = self.totals(states)
        if self.divides:
            total, count = map(float, sums)
            return {shown: total / count if count else math.nan}
        if not self.has_formula:
            return {shown: float(sums[0])}
        numbers = self._by_name(self.result_after(sums), shown)
        self.metric.reset_state()
        return numbers

    def result_after(self, totals: Sequence[Any]) -> Any:
        """Return the result for these values of the variables, within a trace, too."""
        self.reset(totals)
        return self.metric.result()

    @property
    def has_formula(self) -> bool:
        """Return whether `numbers` asks Keras for a result."""
        return not (self.divides or _result_is_inherited(self.metric, "Sum"))

    def totals(self, states: SetStates) -> list[Any]:
        """Return the values of the variables over all batches."""
        return [_value_of(states[str(index)]) for index in range(len(self.identity))]

    def is_undefined(self, states: SetStates) -> bool:
        """Return whether the number is a mean over a total weight of 0, for which Keras returns 0."""
        return self.divides and not np.any(_value_of(states["1"]))

    def goal(self) -> Goal:
        """Return whether larger or smaller numbers are better, if the metric of Keras declares it."""
        return goal_of(self.metric)

    @property
    def may_have_interval(self) -> bool:
        """Return whether intervals from a sample of the examples cover the number: no extreme, mean or total.

        Less than 93 % or more than 97 % of those of `_NOT_COVERED` contain the truth.
        """
        left_out = any(class_named(self.metric, name) is not None for name in _NOT_COVERED)
        is_curve_of_precision = str(getattr(self.metric, "curve", "")).endswith("PR")
        are_sums = all(reduction == "sum" for reduction in self.reductions)
        return are_sums and not (self.divides or left_out or is_curve_of_precision)

    @property
    def is_area(self) -> bool:
        """Return whether the number is an area under a curve of scores."""
        return class_named(self.metric, "AUC") is not None

    def update(self, names: Sequence[str], *arguments: Any) -> None:
        """Update once from the identity, within a trace, too. `names`: those of the last arguments."""
        self.reset()
        first = len(arguments) - len(names)
        self.metric.update_state(*arguments[:first], **dict(zip(names, arguments[first:], strict=True)))

    def result_of(self, names: Sequence[str], *arguments: Any) -> Any:
        """Return the result of a single update, as `update` makes it."""
        self.update(names, *arguments)
        return self.metric.result()

    def single_numbers(self, result: Any, shown: str) -> dict[str, float]:
        """Return the numbers in a result by name, without those of an array. `shown`: the name of a single number."""
        numbers = self._by_name(result, shown)
        parts = result.values() if isinstance(result, dict) else [result]
        are_single = all(isinstance(part, dict) or not array_of(part).shape for part in parts)
        return numbers if are_single else {}

    def _by_name(self, result: Any, shown: str) -> dict[str, float]:
        return named_numbers(self.metric, self._label, result, shown)


def label_of(metric: Any) -> str:
    """Return name and class of a metric, for messages."""
    return f"metric {metric.name!r} ({type(metric).__name__})"


def takes_probabilities(metric: Any) -> bool:
    """Return whether a metric of Keras compares predictions with thresholds from 0 to 1 that nobody chose."""
    if class_named(metric, "AUC") is not None:
        return not getattr(metric, "_from_logits", False) and not getattr(metric, "_init_from_thresholds", False)
    if class_named(metric, "SensitivitySpecificityBase") is not None:
        return True
    is_of_classes = any(class_named(metric, name) is not None for name in ("Precision", "Recall"))
    return is_of_classes and metric.init_thresholds is None and metric.top_k is None


def goal_of(metric: Any) -> Goal:
    """Return whether larger or smaller numbers of a metric of Keras are better, if it declares that."""
    return _GOALS.get(getattr(metric, "_direction", None), "none")


def named_numbers(metric: Any, label: str, result: Any, shown: str) -> dict[str, float]:
    """Return the numbers in a result of a metric by name; a result is one number, an array, or a dict of results."""
    if isinstance(result, dict):
        return {
            name: number
            for key, part in result.items()
            for name, number in named_numbers(metric, label, part, str(key)).items()
        }
    if isinstance(result, int | float | np.generic):
        return {shown: float(result)}  # a tensor would round it to float32
    array = array_of(result)
    if not array.shape:
        return {shown: float(array)}
    if not 0 < array.size <= MAX_CLASSES:
        raise task_error(f"{label} has {array.size} results, 1 to {MAX_CLASSES} can be published: give it an average")
    suffixes = _thresholds(metric, array.shape) or ["_".join(map(str, index)) for index in np.ndindex(array.shape)]
    return {f"{shown}_{suffix}": float(number) for suffix, number in zip(suffixes, array.flat, strict=True)}


def _thresholds(metric: Any, shape: tuple[int, ...]) -> list[str]:
    """Return the thresholds of the metric as names, if each result has a different one; otherwise an empty list."""
    thresholds = getattr(metric, "thresholds", None)
    names = [f"{threshold:g}" for threshold in thresholds] if isinstance(thresholds, list | tuple) else []
    return names if (len(names),) == shape and len(set(names)) == len(names) else []


def _is_merged(reduction: str, after_all: Any, parts: Sequence[Any], additions: int = 0) -> bool:
    """Return whether a state after all batches is what the reduction makes of the states after each of them."""
    if reduction == "sum":
        return is_rounded_sum(after_all, parts, additions)
    return is_near(after_all, np.asarray(_MERGE[reduction].reduce(parts)))  # type: ignore[attr-defined]


def _value_of(state: State) -> NDArray[Any]:
    assert isinstance(state, ExactSum | MinMax)
    return state.round() if isinstance(state, ExactSum) else state.values()


def _result_is_inherited(metric: Any, name: str) -> bool:
    """Return whether the metric computes its result exactly as Keras' class of that name does."""
    cls = class_named(metric, name)
    return cls is not None and type(metric).result is cls.result


def reads_classes(metric: Any) -> bool:
    """Return whether a metric of Keras takes labels as numbers of classes, and is told to ignore none of them."""
    return class_named(metric, type(metric).__name__) is not None and (
        type(metric).__name__.startswith("Sparse") and getattr(metric, "ignore_class", None) is None
    )


def negative_notes(labels: int, weights: int) -> tuple[str, ...]:
    """Return notes about labels and weights below 0, which Keras accepts."""
    notes = (
        (labels, "labels are negative: no class has such a number, so Keras counts these predictions as wrong"),
        (weights, "weights are negative: Keras subtracts their examples, so a mean may lie outside of its values"),
    )
    return tuple(f"{count} {note}" for count, note in notes if count)


def by_batch_note(names: Sequence[str]) -> tuple[str, ...]:
    """Return a note for the reader of the result about metrics that depend on batches; no note without names."""
    if not names:
        return ()
    predicate = "is a mean over batches" if len(names) == 1 else "are means over batches"
    return (f"{', '.join(names)} {predicate}, as in Keras; another batch size gives another number",)


def undefined(names: Sequence[str]) -> tuple[str, ...]:
    """Return a note for people about the metrics of these names, whose total weight is 0; no note without names."""
    return (f"{', '.join(names)}: the total weight is 0, so there is no mean; Keras returns 0",) if names else ()
