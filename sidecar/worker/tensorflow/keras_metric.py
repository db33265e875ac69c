"""A Keras metric as an exact state: its change by one batch, summed outside Keras' float32 variables.

Works alike for Keras 3 and tf_keras: inside the traced step the metric is reset, updated, and read. A state is a sum
unless the metric says otherwise: `sidecar_reduction = "max"`, or a dict from the names of its variables.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.worker.failures import EvaluationError
from sidecar.worker.metrics.metric import Extent, Goal, Numbers, value
from sidecar.worker.states import ExactSum, Extreme, SetStates, State
from sidecar.worker.tensorflow.data import array_of
from sidecar.worker.tensorflow.per_example import PerExample
from sidecar.worker.tensorflow.probe import divided
from sidecar.worker.tensorflow.restore import is_keras_2

_GOALS: Final[dict[str | None, Goal]] = {"up": "max", "down": "min"}
_DECLARED: Final = "sidecar_reduction"
_MERGE: Final[dict[str, Callable[..., Any]]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
_TOLERANCE: Final = 1e-4  # float32 sums of a batch and of its halves differ by roundings


class KerasMetric:
    """One metric object: its identity, its states, its final value.

    Args:
        metric: The Keras object. It must have been updated once, so that its variables exist.
    """

    def __init__(self, metric: Any) -> None:
        self.metric = metric
        self._told = f"metric {metric.name!r} ({type(metric).__name__})"
        self._scalars(metric.result())  # now, not after the whole evaluation
        metric.reset_state()
        self._identity = self.values()
        if not self._identity:
            raise EvaluationError("task_error", f"{self._told} has no state: create its variables with add_weight")
        self._reductions = self._declared()
        for array, reduction in zip(self._identity, self._reductions, strict=True):
            if reduction == "sum" and np.any(array):
                raise EvaluationError(
                    "task_error",
                    f"{self._told} does not start from zero, so its parts cannot be added up over workers",
                )

    def values(self) -> list[Any]:
        """What its variables hold now, outside a trace."""
        return [array_of(variable) for variable in self.metric.variables]

    def check_mergeable(self, whole: list[Any], parts: list[list[Any]]) -> None:
        """Raise unless the states after some examples are the merged states after parts of them.

        A mean of batch means, a last value, a largest value that nobody declared: all depend on how data are divided.
        """
        states = zip(self.metric.variables, self._reductions, whole, *parts, strict=True)
        for variable, reduction, of_whole, first, second in states:
            merged = _MERGE[reduction](first, second)
            if not np.allclose(merged, of_whole, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
                verb = "add up" if reduction == "sum" else f"keep the {reduction} of"
                raise EvaluationError(
                    "task_error",
                    f"{self._told} does not {verb} what it sees (state {variable.name!r}), so it would depend on how "
                    f"the data are divided: give it states that are sums over examples, or declare a largest or "
                    f'smallest value with {_DECLARED} = {{"{variable.name}": "max"}}',
                )

    def _declared(self) -> list[str]:
        """The reduction of every variable."""
        declared = getattr(self.metric, _DECLARED, "sum")
        names = [str(variable.name) for variable in self.metric.variables]
        by_name = declared if isinstance(declared, Mapping) else dict.fromkeys(names, declared)
        if wrong := {name: each for name, each in by_name.items() if name not in names or each not in _MERGE}:
            raise EvaluationError(
                "task_error",
                f"{self._told} declares {_DECLARED} {wrong}: write one of {', '.join(_MERGE)} for its variables "
                f"{', '.join(names)}",
            )
        return [by_name.get(name, "sum") for name in names]

    def reset(self) -> None:
        """Within the traced step: back to the identity."""
        for variable, identity in zip(self.metric.variables, self._identity, strict=True):
            variable.assign(tf.constant(identity, variable.dtype))

    def read(self) -> list[Any]:
        """Within the traced step, after an update: the change by this batch."""
        return [tf.identity(tf.convert_to_tensor(variable)) for variable in self.metric.variables]

    def states(self, extent: Extent) -> SetStates:
        """The identity of every state."""
        return {
            str(index): ExactSum(array.shape, str(array.dtype))
            if reduction == "sum"
            else Extreme(array.shape, str(array.dtype), "max" if reduction == "max" else "min", extent.shard)
            for index, (array, reduction) in enumerate(zip(self._identity, self._reductions, strict=True))
        }

    def add(self, states: SetStates, changes: list[list[NDArray[Any]]]) -> None:
        """Add the changes by several batches: of each variable a list, an array for each batch."""
        for index, arrays in enumerate(changes):
            state = states[str(index)]
            assert isinstance(state, ExactSum | Extreme)
            state.add_all(np.stack(arrays))

    @property
    def divides(self) -> bool:
        """Whether its result is Keras' `Mean`: total divided by count."""
        return _result_is_inherited(self.metric, "Mean")

    def number(self, states: SetStates) -> float | dict[str, float]:
        """The final number: divided in float64 here where Keras divides; else through Keras' own `result()`."""
        sums = [_value_of(states[str(index)]) for index in range(len(self._identity))]
        if self.divides:
            total, count = map(float, sums)
            return total / count if count else math.nan
        if _result_is_inherited(self.metric, "Sum"):
            return float(sums[0])
        for variable, array in zip(self.metric.variables, sums, strict=True):
            variable.assign(tf.cast(tf.constant(array), variable.dtype))
        result = self._scalars(self.metric.result())
        self.metric.reset_state()
        return result

    def goal(self) -> Goal:
        """Whether more is better, as far as Keras knows."""
        return _GOALS.get(getattr(self.metric, "_direction", None), "none")

    def _scalars(self, result: Any) -> float | dict[str, float]:
        if isinstance(result, dict):
            return {key: self._scalar(value) for key, value in result.items()}
        return self._scalar(result)

    def _scalar(self, result: Any) -> float:
        array = array_of(result)
        if array.shape:
            raise EvaluationError(
                "task_error", f"{self._told} has {array.size} results, one number is needed: give it an average"
            )
        return float(array)


def _value_of(state: State) -> NDArray[Any]:
    assert isinstance(state, ExactSum | Extreme)
    return state.round() if isinstance(state, ExactSum) else state.values()


def per_example(metric: Any) -> Callable[..., Any] | None:
    """The function of (y, y_pred) whose mean the metric is, if it is that and nothing more."""
    wrapper = _class_named(metric, "MeanMetricWrapper")
    if wrapper is None or type(metric).update_state is not wrapper.update_state:
        return None
    function, arguments = getattr(metric, "_fn", None), getattr(metric, "_fn_kwargs", {})
    if function is None:
        return None
    return lambda y, y_pred: function(y, y_pred, **arguments)


class MeasuredMetric:
    """A Keras metric among those that a task names: an additive state, and an interval where single values are seen.

    Args:
        metric: The Keras object.
        y: Of a first batch, on which it is tried; likewise `predictions` and `weights`.
    """

    def __init__(self, metric: Any, y: Any, predictions: Any, weights: Any) -> None:
        _refuse_plain_values(metric)
        _update(metric, y, predictions, weights)  # some create their variables only here
        self._metric = KerasMetric(metric)
        whole, *parts = (self._after(*part) for part in divided((y, predictions, weights)))
        self._metric.check_mergeable(whole, parts)
        is_plain = weights is None and getattr(predictions, "_keras_mask", None) is None
        self._function = per_example(metric) if is_plain and self._metric.divides else None
        if self._function is not None and not _is_mean_of(array_of(self._function(y, predictions)), whole):
            self._function = None
        self._each = PerExample()

    def _after(self, y: Any, predictions: Any, weights: Any) -> list[Any]:
        """The states after nothing but these examples."""
        self._metric.metric.reset_state()
        _update(self._metric.metric, y, predictions, weights)
        return self._metric.values()

    def step(self, y: Any, predictions: Any, weights: Any) -> Any:
        """Within the traced step: single values where the metric is their mean, else its change by this batch."""
        if self._function is not None:
            return tf.convert_to_tensor(self._function(y, predictions))
        self._metric.reset()
        _update(self._metric.metric, y, predictions, weights)
        return self._metric.read()

    def states(self, extent: Extent) -> SetStates:
        """The identity of every state."""
        return self._metric.states(extent) if self._function is None else self._each.states()

    def add(self, states: SetStates, outputs: Any) -> None:
        """Add what `step` returned, each array of it a list over batches."""
        if self._function is None:
            self._metric.add(states, outputs)
        else:
            self._each.add(states, outputs)

    def conclude(self, states: SetStates) -> Numbers:
        """The final number, or several by their own names."""
        name, goal = str(self._metric.metric.name), self._metric.goal()
        if self._function is not None:
            return Numbers({name: value(self._each.mean(states), goal, self._each.interval(states))})
        number = self._metric.number(states)
        if isinstance(number, dict):
            return Numbers({key: value(each, goal) for key, each in number.items()})
        return Numbers({name: value(number, goal)})


def _is_mean_of(values: NDArray[Any], states: list[Any]) -> bool:
    """Whether a mean's total and count are those of these values, one for each example."""
    total, count = states
    if values.ndim != 1 or (values.dtype.kind == "f" and values.dtype.itemsize > 4):  # noqa: PLR2004 - bytes of a float32
        return False
    return count == values.size and np.allclose(values.sum(dtype=np.float64), total, rtol=_TOLERANCE, equal_nan=True)


def _refuse_plain_values(metric: Any) -> None:
    """`Mean` and its like would take predictions for weights, without a word."""
    parameters = list(inspect.signature(type(metric).update_state).parameters)  # tf_keras hides those of the object
    if parameters[2:3] == ["sample_weight"]:
        raise EvaluationError(
            "task_error",
            f"metric {metric.name!r} ({type(metric).__name__}) takes values and their weights, not labels and "
            f"predictions: for a mean use keras.metrics.MeanMetricWrapper with a function of (y, y_pred)",
        )


def masked(weights: Any, predictions: Any) -> Any:
    """The weights, with 0 where the model masks its predictions; None where everything counts as 1."""
    mask = getattr(predictions, "_keras_mask", None)
    if mask is None:
        return weights
    kept = tf.cast(mask, tf.float32)
    if weights is None:
        return kept
    weights = tf.cast(weights, tf.float32)
    while weights.shape.rank < kept.shape.rank:
        weights = weights[..., tf.newaxis]
    return weights * kept


def _update(metric: Any, y: Any, predictions: Any, weights: Any) -> None:
    """As Keras calls it: a metric of the user's need not know about weights where there are none."""
    if is_keras_2(metric):  # its metrics know nothing of masks: its models turn them into weights
        weights = masked(weights, predictions)
    if weights is None:
        metric.update_state(y, predictions)
    else:
        metric.update_state(y, predictions, sample_weight=weights)


def _class_named(metric: Any, name: str) -> Any:
    """The class of Keras itself, 3 or tf_keras, by that name among the metric's bases."""
    return next(
        (
            cls
            for cls in type(metric).__mro__
            if cls.__name__ == name and cls.__module__.split(".")[0] in ("keras", "tf_keras")
        ),
        None,
    )


def _result_is_inherited(metric: Any, name: str) -> bool:
    """Whether the metric computes its result exactly as Keras' class of that name does."""
    cls = _class_named(metric, name)
    return cls is not None and type(metric).result is cls.result
