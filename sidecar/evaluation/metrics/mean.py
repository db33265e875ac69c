"""Average the values that a function returns for each example. Imports numpy only."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.data.plain_arrays import plain_array
from sidecar.evaluation.metrics.argument_names import labels_first
from sidecar.evaluation.metrics.average import Average
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.positions import as_numbers, counting, without_trailing_ones
from sidecar.evaluation.metrics.sample import IntervalOf, usual_interval
from sidecar.evaluation.states import SetStates
from sidecar.protocol.records import Goal
from sidecar.system.plain_text import shortened

_BOUNDS: Final = 2


class Mean:
    """Average the values of a function of (labels, predictions), or the predictions themselves: Σ w·v / Σ w.

    Args:
        function: Takes numpy arrays (n, …), or lists of n objects, such as texts, if the task gives lists. Returns one
            value for each example (n,) or position (n, …). Parameters with names such as `preds` and `target` get what
            their names say.
        name: Name of the metric and of its number.
        goal: "max" if larger values are better, "min" if smaller ones are, "none" if neither.
        bounds: Least and largest value that an example can have, such as (0, 1) for "right or wrong"; None: unknown.
            The interval stays within them. Bools have the bounds (0, 1).
        interval: Function that makes the 95 % interval: see `Accuracy`.
    """

    def __init__(
        self,
        function: Callable[[NDArray[Any], NDArray[Any]], Any] | None = None,
        *,
        name: str = "mean",
        goal: Goal = "none",
        bounds: tuple[float, float] | None = None,
        interval: IntervalOf = usual_interval,
    ) -> None:
        if function is not None and not callable(function):
            raise TaskError(f"metric {name!r}: Mean takes a function of (y, predictions), found {shortened(function)}")
        if bounds is not None and not (len(bounds) == _BOUNDS and bounds[0] < bounds[1]):
            raise TaskError(f"metric {name!r}: bounds={bounds!r} must be (least, largest), such as (0, 1)")
        self.name, self._bounds = name, bounds
        self._function = None if function is None else labels_first(function)
        self._goal, self._interval = goal, interval
        self._average = Average()

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        return self._average.states(info)

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` unless there is a value for each example."""
        given = batch.given
        returned = batch.predictions if self._function is None else self._function(*given)
        try:
            values = as_numbers(self.name, "values", plain_array(returned))
        except ValueError as error:
            raise TaskError(f"metric {self.name!r}: its function did not return an array: {error}") from None
        if not values.ndim or len(values) not in (len(batch.predictions), batch.examples):
            raise TaskError(
                f"metric {self.name!r}: its function must return one value for each of {len(batch.predictions)} "
                f"examples, found shape {values.shape}: the metric averages them itself"
            )
        if self._function is not None:
            self._require_own_rows(values, *given)
            self._require_comparable(values, batch.y, batch.predictions)
        values = without_trailing_ones(values)
        if (
            self._bounds is not None
            and (beyond := values[(values < self._bounds[0]) | (values > self._bounds[1])]).size
        ):
            raise TaskError(f"metric {self.name!r}: found the value {beyond.flat[0]:g} beyond bounds={self._bounds!r}")
        positions = counting(self.name, batch.weights, values.shape, values, examples=batch.examples)
        is_proportion = values.dtype == np.bool_ or self._bounds == (0, 1)
        self._average.add_batch(states, batch, positions.arrays[0], positions, is_proportion=is_proportion)

    def _require_own_rows(self, values: NDArray[Any], y: Any, predictions: Any) -> None:
        """Raise `TaskError` if each label was compared with all predictions: numpy makes (n, n) of (n,) and (n, 1)."""
        shapes = np.shape(y), np.shape(predictions)
        n = len(values)
        if n > 1 and values.shape[:2] == (n, n) and any(shape == (n,) for shape in shapes):
            longer = "y" if len(shapes[0]) > 1 else "predictions"
            if shapes[longer == "predictions"][:2] == (n, 1):
                raise TaskError(
                    f"metric {self.name!r}: y has shape {shapes[0]} and predictions {shapes[1]}, of which its function "
                    f"made {values.shape}: let it use {longer}[:, 0]"
                )

    def _require_comparable(self, values: NDArray[Any], y: Any, predictions: Any) -> None:
        """Raise `TaskError` if the function compares texts with numbers as they are: to numpy they are never equal."""
        if values.dtype != np.bool_ or values.min() != values.max() or _is_text(y) == _is_text(predictions):
            return
        assert self._function is not None, "its caller checks it"
        try:
            self._function(y.view(_Comparing), predictions.view(_Comparing))
        except _TextWithNumberError:
            texts, numbers = ("y", "predictions") if _is_text(y) else ("predictions", "y")
            advice = "let predict number the classes, such as np.searchsorted(model.classes_, predicted)"
            raise TaskError(
                f"metric {self.name!r}: its function compares texts ({texts}) with numbers ({numbers}): "
                + (advice if texts == "predictions" else "number the classes in the eval set as the model does")
            ) from None
        except Exception:  # noqa: BLE001 - it takes arrays of numpy only, and has taken these before
            return

    def compute(self, states: SetStates) -> MetricResult:
        """Return the mean; NaN for a total weight of 0."""
        interval = self._average.interval(states, self._interval, is_proportion=self._bounds == (0, 1))
        if self._bounds is not None and interval[0] is not None:
            interval = max(interval[0], self._bounds[0]), min(interval[1], self._bounds[1])
        return MetricResult({self.name: value(self._average.mean(states), self._goal, interval)})


class _TextWithNumberError(Exception):
    """Texts are compared with numbers."""


class _Comparing(np.ndarray[Any, Any]):
    """An array that refuses to be compared with another kind of values."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [np.asarray(each) for each in inputs]
        if ufunc in (np.equal, np.not_equal) and len({_is_text(array) for array in arrays}) > 1:
            raise _TextWithNumberError
        return getattr(ufunc, method)(*arrays, **options)


def _is_text(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "SU" or (array.dtype.hasobject and isinstance(next(iter(array.flat), None), str | bytes))
