"""A Keras metric as an exact state: its change by one batch, summed outside Keras' float32 variables.

Works alike for Keras 3 and tf_keras: inside the traced step the metric is reset, updated, and read.
"""

import math
from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np
import tensorflow as tf

from sidecar.records import Value
from sidecar.worker.failures import EvaluationError
from sidecar.worker.intervals import normal, wilson
from sidecar.worker.states import ExactSum, SetStates, exact_sum
from sidecar.worker.tensorflow.data import array_of

Goal = Literal["max", "min", "none"]
_GOALS: Final[dict[str | None, Goal]] = {"up": "max", "down": "min"}


class KerasMetric:
    """One metric object: its identity, its states, its final value.

    Args:
        metric: The Keras object. It must have been updated once, so that its variables exist.
        name: Under which its states travel; two outputs of a model may each have an `accuracy`.
    """

    def __init__(self, metric: Any, name: str) -> None:
        self.metric = metric
        self._name = name
        self._told = f"metric {metric.name!r} ({type(metric).__name__})"
        self._scalars(metric.result())  # now, not after the whole evaluation
        metric.reset_state()
        self._identity = self.values()
        if not self._identity:
            raise EvaluationError("task_error", f"{self._told} has no state: create its variables with add_weight")
        if any(np.any(array) for array in self._identity):
            raise EvaluationError(
                "task_error",
                f"{self._told} does not start from zero, so its parts cannot be added up over workers",
            )

    def values(self) -> list[Any]:
        """What its variables hold now, outside a trace."""
        return [array_of(variable) for variable in self.metric.variables]

    def check_additive(self, once: list[Any], twice: list[Any]) -> None:
        """Raise unless a batch that counts twice leaves twice the change: a largest or a last value would not."""
        if not all(np.allclose(2 * one, two, rtol=1e-4, equal_nan=True) for one, two in zip(once, twice, strict=True)):
            raise EvaluationError(
                "task_error",
                f"{self._told} does not add up what it sees, so it would depend on how the data are divided: give it "
                f"states that are sums over examples",
            )

    def reset(self) -> None:
        """Within the traced step: back to the identity."""
        for variable, identity in zip(self.metric.variables, self._identity, strict=True):
            variable.assign(tf.constant(identity, variable.dtype))

    @property
    def count_state(self) -> str | None:
        """The state that says over how many values a mean was taken, if it is one."""
        return self._state(1) if self.divides else None

    def read(self) -> list[Any]:
        """Within the traced step, after an update: the change by this batch."""
        return [tf.identity(tf.convert_to_tensor(variable)) for variable in self.metric.variables]

    def states(self) -> SetStates:
        """The identity of every state."""
        return {
            self._state(index): ExactSum(array.shape, str(array.dtype)) for index, array in enumerate(self._identity)
        }

    def add(self, states: SetStates, change: list[Any]) -> None:
        """Add one batch's change."""
        for index, array in enumerate(change):
            exact_sum(states, self._state(index)).add(np.asarray(array))

    @property
    def divides(self) -> bool:
        """Whether its result is Keras' `Mean`: total divided by count."""
        return _result_is_inherited(self.metric, "Mean")

    def number(self, states: SetStates) -> float | dict[str, float]:
        """The final number: divided in float64 here where Keras divides; else through Keras' own `result()`."""
        sums = [exact_sum(states, self._state(index)).round() for index in range(len(self._identity))]
        if self.divides:
            total, count = (float(value) for value in sums)
            return total / count if count else math.nan
        if _result_is_inherited(self.metric, "Sum"):
            return float(sums[0])
        for variable, value in zip(self.metric.variables, sums, strict=True):
            variable.assign(tf.cast(tf.constant(value), variable.dtype))
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

    def _state(self, index: int) -> str:
        return f"{self._name}/{index}"


def per_example(metric: Any) -> Callable[..., Any] | None:
    """The function of (y, y_pred) whose mean the metric is, if it is that and nothing more."""
    wrapper = _class_named(metric, "MeanMetricWrapper")
    if wrapper is None or type(metric).update_state is not wrapper.update_state:
        return None
    function, arguments = getattr(metric, "_fn", None), getattr(metric, "_fn_kwargs", {})
    if function is None:
        return None
    return lambda y, y_pred: function(y, y_pred, **arguments)


class PerExample:
    """What an interval needs: counts and squares of a metric's values, seen one by one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def states(self) -> SetStates:
        """The identity of every state."""
        return {
            self._state("count"): ExactSum((), "int64"),
            self._state("ones"): ExactSum((), "int64"),
            self._state("binary"): ExactSum((), "int64"),
            self._state("total"): ExactSum((), "float32"),
            self._state("squares"): ExactSum((), "float64"),
        }

    def add(self, states: SetStates, values: Any) -> None:
        """Add the values of one batch, of any shape."""
        array = np.asarray(values, np.float32).ravel()
        ones = int(np.count_nonzero(array == 1))
        exact_sum(states, self._state("count")).add(np.int64(array.size))
        exact_sum(states, self._state("ones")).add(np.int64(ones))
        exact_sum(states, self._state("binary")).add(np.int64(ones + np.count_nonzero(array == 0)))
        exact_sum(states, self._state("total")).add_each(array)
        exact_sum(states, self._state("squares")).add_each(np.square(array.astype(np.float64)))

    def count(self, states: SetStates) -> int:
        """How many values were seen."""
        return int(exact_sum(states, self._state("count")).integers())

    def total(self, states: SetStates) -> float:
        """Their exact sum, rounded once."""
        return float(exact_sum(states, self._state("total")).round())

    def interval(self, states: SetStates) -> tuple[float | None, float | None]:
        """95 % interval of the mean: Wilson's if all values are 0 or 1, else the normal one."""
        count = self.count(states)
        if count and int(exact_sum(states, self._state("binary")).integers()) == count:
            return wilson(int(exact_sum(states, self._state("ones")).integers()), count)
        return normal(self.total(states), float(exact_sum(states, self._state("squares")).round()), count)

    def _state(self, what: str) -> str:
        return f"{self._name}/each_{what}"


def value(number: float, goal: Goal, interval: tuple[float | None, float | None] = (None, None)) -> Value:
    """A metric's final number as it stands in records: JSON knows no NaN, so `hex` says it."""
    if not math.isfinite(number):
        return Value(None, "nan" if math.isnan(number) else "inf" if number > 0 else "-inf", goal=goal)
    return Value(number, number.hex(), *interval, goal=goal)


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
