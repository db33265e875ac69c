"""Compute numbers from sums over all examples, which a function returns for each batch. Imports numpy only."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sidecar.errors import TaskError
from sidecar.evaluation.data.plain_arrays import plain_array
from sidecar.evaluation.metrics.argument_names import labels_first
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.states import NamedSums, SetStates, state_of
from sidecar.protocol.records import Goal
from sidecar.system.plain_text import shortened

_SUMS = "sums"
_WEIGHTED = 3  # arguments of a function that takes weights


class Sums:
    """Compute numbers from named sums over all examples, such as counts, sums of squares, or a confusion matrix.

    The sums are exact, so the numbers do not depend on batches and workers. In a set of at least 100 examples a number
    that is no total has an interval, for which the function is called with parts of batches, too: see `RandomGroups`.
    For example, the F1 score of class 1:

        Sums(
            lambda y, predictions: {
                "hits": np.sum((y == 1) & (predictions.argmax(1) == 1)),
                "found": np.sum(predictions.argmax(1) == 1),
                "there": np.sum(y == 1),
            },
            lambda totals: 2 * totals["hits"] / (totals["found"] + totals["there"]),
            name="f1",
            goal="max",
        )

    Args:
        function: Takes labels and predictions of one batch as numpy arrays (n, …), or as lists if the task gives lists.
            Returns sums over its examples by name: numbers or small arrays, with the same names and shapes for every
            batch. A function of three arguments gets the weights, too, which are `None` if there are none.
            Parameters with names such as `preds` and `target` get what their names say.
        value: Takes the totals by name: int, float, or arrays of int64 or float64. Returns a number, or several by
            name; instead of a number there may be numbers by class.
        name: Name of the metric, and of its number if there is only one.
        goal: "max" if larger numbers are better, "min" if smaller ones are, "none" if neither.
    """

    def __init__(
        self,
        function: Callable[..., Mapping[str, Any]],
        value: Callable[[dict[str, Any]], Any],
        *,
        name: str = "sums",
        goal: Goal = "none",
    ) -> None:
        for argument, given in (("function of (y, predictions)", function), ("value, a function of the totals", value)):
            if not callable(given):
                raise TaskError(f"metric {name!r}: Sums takes a {argument}, found {shortened(given)}")
        self.name = name
        self._function, self._value, self._goal = labels_first(function), value, goal
        self._takes_weights = _takes_weights(function)

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        return {_SUMS: NamedSums(info.shard)}

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` unless the function returns sums by name."""
        returned = self.sums_of(batch)
        sums = state_of(states, _SUMS, NamedSums)
        try:
            sums.add({str(name): plain_array(one) for name, one in returned.items()})
        except (OverflowError, TypeError, ValueError) as error:
            is_large = isinstance(error, OverflowError) or any(_is_too_large(one) for one in returned.values())
            advice = ": return it as a float, such as float(total)" if is_large else ""
            raise TaskError(
                f"metric {self.name!r}: its function does not return sums that add up: {error}{advice}"
            ) from None

    def sums_of(self, batch: EvalBatch) -> Mapping[str, Any]:
        """Return what the function returns for a batch. Raises `TaskError` unless these are sums by name."""
        if batch.weights is not None and not self._takes_weights:
            raise TaskError(
                f"metric {self.name!r}: the data have weights, so its function must take (y, predictions, weights)"
            )
        arguments = (*batch.given, batch.weights)[: _WEIGHTED if self._takes_weights else 2]
        returned = self._function(*arguments)
        if not isinstance(returned, Mapping) or not returned:
            raise TaskError(
                f"metric {self.name!r}: its function must return sums by name, such as {{'errors': 3}}, found "
                f"{shortened(returned)}"
            )
        return returned

    def compute(self, states: SetStates) -> MetricResult:
        """Return the numbers that `value` makes of the totals. Raises `TaskError` if it returns anything else."""
        sums = state_of(states, _SUMS, NamedSums)
        return self.numbers_of({name: total if total.ndim else total.item() for name, total in sums.totals().items()})

    def numbers_of(self, totals: dict[str, Any]) -> MetricResult:
        """Return the numbers that `value` makes of totals by name. Raises `TaskError` if it returns anything else."""
        try:
            returned = self._value(totals)
        except ArithmeticError as error:
            found = shortened(totals, 200)
            raise TaskError(f"metric {self.name!r}: its value of the totals {found} fails: {error}") from None
        numbers = returned if isinstance(returned, Mapping) else {self.name: returned}
        values, classes = {}, {}
        for name, number in numbers.items():
            if isinstance(number, Mapping):
                classes[str(name)] = {str(key): value(self._number(one), self._goal) for key, one in number.items()}
            else:
                values[str(name)] = value(self._number(number), self._goal)
        return MetricResult(values, classes)

    def _number(self, number: Any) -> float:
        array = np.asarray(number)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise TaskError(
                f"metric {self.name!r}: its value must be a number or numbers by name, found {shortened(number)}"
            )
        return float(array.reshape(()))


def _is_too_large(number: Any) -> bool:
    """Return whether a number is an integer of Python that numpy holds as an object."""
    return isinstance(number, int) and not -(1 << 63) <= number < 1 << 64


def _takes_weights(function: Callable[..., Any]) -> bool:
    """Return whether a function has a third argument, and not for something else that has a value already."""
    try:
        signature = inspect.signature(function)
        signature.bind(None, None, None)
    except (TypeError, ValueError):  # it takes two arguments, or it is a builtin without a signature
        return False
    third = list(signature.parameters.values())[_WEIGHTED - 1 : _WEIGHTED]
    return not third or third[0].default is third[0].empty or "weight" in third[0].name.lower()
