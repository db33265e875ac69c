"""Turn a Keras metric into an exact state: its change by one batch, summed outside Keras' float32 variables.

Works alike for Keras 3 and tf_keras: inside the traced step the metric is reset, updated, and read. A state is a sum
unless the metric says otherwise: `sidecar_reduction = "max"`, or a dict from the names of its variables.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.evaluation.backends.tensorflow.data import array_of
from sidecar.evaluation.backends.tensorflow.libraries import class_named
from sidecar.evaluation.backends.tensorflow.rounding import is_near, is_rounded_sum
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.metrics.metric import EvalSetInfo, Goal
from sidecar.evaluation.rank_evaluation import MAX_CLASSES
from sidecar.evaluation.states import ExactSum, MinMax, SetStates, State

_GOALS: Final[dict[str | None, Goal]] = {"up": "max", "down": "min"}
_DECLARED: Final = "sidecar_reduction"
_MERGE: Final[dict[str, Callable[..., Any]]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class KerasMetric:
    """One metric object: its identity, its states, its final value.

    Args:
        metric: The Keras object. It must have been updated once, so that its variables exist.
        told: How it is called in messages; None: by its name and class.
    """

    def __init__(self, metric: Any, told: str | None = None) -> None:
        self.metric = metric
        self._told = told or f"metric {metric.name!r} ({type(metric).__name__})"
        self._named(metric.result(), "")  # now, not after the whole evaluation
        metric.reset_state()
        self.identity = self.values()
        if not self.identity:
            raise EvaluationError("task_error", f"{self._told} has no state: create its variables with add_weight")
        self.reductions = self._declared()
        for array, reduction in zip(self.identity, self.reductions, strict=True):
            if reduction == "sum" and np.any(array):
                raise EvaluationError(
                    "task_error",
                    f"{self._told} does not start from zero, so its parts cannot be added up over workers",
                )

    def values(self) -> list[Any]:
        """Return the present values of its variables, outside a trace."""
        return [array_of(variable) for variable in self.metric.variables]

    def require_additive(self, in_turn: list[Any], changes: Sequence[list[Any]]) -> None:
        """Raise unless the states after some batches in turn are the merged changes by each of them.

        A last value, or a largest one that nobody declared, is not.
        """
        states = zip(self.metric.variables, self.reductions, in_turn, *changes, strict=True)
        for variable, reduction, found, *parts in states:
            if reduction == "sum":
                fits = is_rounded_sum(found, parts)
            else:
                fits = is_near(found, np.asarray(_MERGE[reduction].reduce(parts)))  # type: ignore[attr-defined]
            if not fits:
                verb = "add up" if reduction == "sum" else f"keep the {reduction} of"
                raise EvaluationError(
                    "task_error",
                    f"{self._told} does not {verb} what it sees (state {variable.name!r}) from batch to batch, so the "
                    f"states of several workers cannot be merged: give it states to which each batch adds, with "
                    f"assign_add; a largest or smallest value is declared with "
                    f'{_DECLARED} = {{"{variable.name}": "max"}}',
                )

    def depends_on_batches(self, whole: list[Any], parts: Sequence[list[Any]], tolerance: float) -> bool:
        """Return whether the states after a batch differ from those merged after its parts, as of a mean of means."""
        states = zip(self.reductions, whole, *parts, strict=True)
        return not all(
            is_near(found, _MERGE[reduction](first, second), tolerance) for reduction, found, first, second in states
        )

    def _declared(self) -> list[str]:
        """Return the reduction of every variable."""
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

    def reset(self, start: Sequence[Any] | None = None) -> None:
        """Set the variables within the traced step to these values, or back to the identity."""
        for variable, value in zip(self.metric.variables, start or self.identity, strict=True):
            variable.assign(tf.cast(tf.convert_to_tensor(value), variable.dtype))

    def read(self) -> list[Any]:
        """Return within the traced step, after an update, the change by this batch."""
        return [tf.identity(tf.convert_to_tensor(variable)) for variable in self.metric.variables]

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        return {
            str(index): ExactSum(array.shape, str(array.dtype))
            if reduction == "sum"
            else MinMax(array.shape, str(array.dtype), "max" if reduction == "max" else "min", info.shard)
            for index, (array, reduction) in enumerate(zip(self.identity, self.reductions, strict=True))
        }

    def add(self, states: SetStates, changes: list[list[NDArray[Any]]]) -> None:
        """Add the changes by several batches: of each variable a list, an array for each batch."""
        for index, arrays in enumerate(changes):
            state = states[str(index)]
            assert isinstance(state, ExactSum | MinMax)
            try:
                state.add_all(np.stack(arrays))
            except OverflowError as error:
                name = self.metric.variables[index].name
                raise EvaluationError(
                    "task_error",
                    f"{self._told} counts in whole numbers (state {name!r}), and these grow too large for 64 bits: "
                    f"{error}; are the weights that large?",
                ) from error

    @property
    def divides(self) -> bool:
        """Whether its result is Keras' `Mean`: total divided by count."""
        return _result_is_inherited(self.metric, "Mean")

    def numbers(self, states: SetStates, shown: str) -> dict[str, float]:
        """Return the final numbers by name: divided in float64 where Keras divides; else by Keras' own `result()`.

        Args:
            states: Of all batches.
            shown: The name of a single number; several have their own, or their place behind it.
        """
        sums = [_value_of(states[str(index)]) for index in range(len(self.identity))]
        if self.divides:
            total, count = map(float, sums)
            return {shown: total / count if count else math.nan}
        if _result_is_inherited(self.metric, "Sum"):
            return {shown: float(sums[0])}
        for variable, array in zip(self.metric.variables, sums, strict=True):
            variable.assign(tf.cast(tf.constant(array), variable.dtype))
        found = self._named(self.metric.result(), shown)
        self.metric.reset_state()
        return found

    def is_undefined(self, states: SetStates) -> bool:
        """Return whether it is a mean over a total weight of 0, which Keras calls 0."""
        return self.divides and not np.any(_value_of(states["1"]))

    def goal(self) -> Goal:
        """Return whether more is better, as far as Keras knows."""
        return _GOALS.get(getattr(self.metric, "_direction", None), "none")

    def _named(self, result: Any, shown: str) -> dict[str, float]:
        """Return numbers of a result: one, several by their own names, or an array."""
        if isinstance(result, dict):
            return {name: each for key, value in result.items() for name, each in self._named(value, str(key)).items()}
        array = array_of(result)
        if not array.shape:
            return {shown: float(array)}
        if not 0 < array.size <= MAX_CLASSES:
            raise EvaluationError(
                "task_error",
                f"{self._told} has {array.size} results, 1 to {MAX_CLASSES} can be published: give it an average",
            )
        places = self._thresholds(array.shape) or ["_".join(map(str, place)) for place in np.ndindex(array.shape)]
        return {f"{shown}_{place}": float(each) for place, each in zip(places, array.flat, strict=True)}

    def _thresholds(self, shape: tuple[int, ...]) -> list[str]:
        """Return names of several results by the thresholds that they are of, if they are."""
        thresholds = getattr(self.metric, "thresholds", None)
        names = [f"{each:g}" for each in thresholds] if isinstance(thresholds, list | tuple) else []
        return names if (len(names),) == shape and len(set(names)) == len(names) else []


def _value_of(state: State) -> NDArray[Any]:
    assert isinstance(state, ExactSum | MinMax)
    return state.round() if isinstance(state, ExactSum) else state.values()


def _result_is_inherited(metric: Any, name: str) -> bool:
    """Return whether the metric computes its result exactly as Keras' class of that name does."""
    cls = class_named(metric, name)
    return cls is not None and type(metric).result is cls.result


def undefined(names: Sequence[str]) -> tuple[str, ...]:
    """Return the note for people about means over a total weight of 0."""
    return (f"{', '.join(names)}: the total weight is 0, so there is no mean; Keras says 0",) if names else ()
