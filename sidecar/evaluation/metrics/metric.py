"""Define a metric for every framework: its states, how a batch changes them, and how they become numbers.

Imports numpy, never a framework. Predictions arrive as numpy arrays, so one metric serves TensorFlow and plain Python.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import Interval
from sidecar.evaluation.states import SetStates
from sidecar.protocol.records import Goal, Value

if TYPE_CHECKING:
    from sidecar.evaluation.data.slice_table import SliceTable

_PACKAGE: Final = __name__.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class EvalSetInfo:
    """Properties of an eval set that are known before it is evaluated.

    Args:
        examples: Number of examples on all ranks together. None if it is unknown before the end, because the set
            divides itself or is divided by file.
        shard: This rank, and the number of ranks.
        groups: Number of the group of each example (n,), from 0, as `EvalSet(groups=…)` says; None: no groups.
        slices: Slices of each example, as `Task(slices=…)` says; None: no slices.
        intervals: As `Task(intervals=…)`.
    """

    examples: int | None
    shard: Shard
    groups: NDArray[np.int64] | None = None
    slices: "SliceTable | None" = None
    intervals: bool | None = None


@dataclass(frozen=True, slots=True)
class EvalBatch:
    """One batch of n examples, as a metric receives it.

    Args:
        y: Labels (n, …).
        predictions: Predictions of the model (n, …).
        weights: One weight for each example (n,) or each of its positions (n, …); None: all weights are 1. Positions
            that the model masks have weight 0.
        first: Number of the first example in the whole eval set, from 0; None if `EvalSetInfo.examples` is None, and
            for the examples of a slice.
        examples: Number of examples, if the n rows may be something else, such as the nodes of graphs or the boxes of
            images; None: each row is an example.
        lists: Whether labels and predictions were lists, such as texts, which stand in arrays of objects here.
        places: Numbers of the examples of a slice in the whole eval set; None: they follow `first`.
    """

    y: NDArray[Any]
    predictions: NDArray[Any]
    weights: NDArray[Any] | None = None
    first: int | None = None
    examples: int | None = None
    lists: tuple[bool, bool] = (False, False)
    places: NDArray[np.intp] | None = None

    def places_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp] | None:
        """Return the numbers in the whole eval set of examples of this batch; None if they are unknown."""
        if self.places is not None:
            return self.places[rows]
        return None if self.first is None else self.first + rows

    def part(self, rows: NDArray[np.intp]) -> "EvalBatch":
        """Return the examples in these rows as a batch, if each row is an example."""
        return replace(
            self,
            y=self.y[rows],
            predictions=self.predictions[rows],
            weights=None if self.weights is None else self.weights[rows],
            first=None,
            places=self.places_of(rows),
            examples=len(rows),
        )

    @property
    def given(self) -> tuple[Any, Any]:
        """Labels and predictions for a function of the user's: lists where the task gave lists, arrays elsewhere.

        If both are integers of 8, 16 or 32 bits, they become int64: differences of the pixels of two images would wrap
        around modulo 256.
        """
        y, predictions = self.y, self.predictions
        if not any(self.lists) and _is_short_integer(y.dtype) and _is_short_integer(predictions.dtype):
            return y.astype(np.int64), predictions.astype(np.int64)
        return y.tolist() if self.lists[0] else y, predictions.tolist() if self.lists[1] else predictions


@dataclass(frozen=True, slots=True)
class MetricResult:
    """The result of a metric: numbers by name, and numbers of each class by name and class.

    `slices` has numbers of each slice by slice and name, which a metric does not make itself. `notes` are sentences for
    people who read the numbers. For example `MetricResult({"accuracy": value(0.98, "max")})`.
    """

    values: Mapping[str, Value]
    classes: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    slices: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)


class Metric(Protocol):
    """One metric, with one or several numbers. The object itself holds no state: `states` returns new ones.

    An example of a custom metric, the share of predictions above a threshold:

        class Confident:
            name = "confident"

            def states(self, info):
                return {"above": ExactSum((), "int64"), "all": ExactSum((), "int64")}

            def add(self, states, batch):
                best = batch.predictions.max(axis=-1)
                states["above"].add(np.count_nonzero(best > 0.9))
                states["all"].add(len(best))

            def compute(self, states):
                above, count = (int(states[name].integers()) for name in ("above", "all"))
                return MetricResult({"confident": value(above / count, "none")})
    """

    @property
    def name(self) -> str:
        """Name of its states and, as a rule, of its number; unique among the metrics of a task."""

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states. Raises `TaskError` if the eval set does not allow them."""

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` for labels or predictions that the metric cannot use."""

    def compute(self, states: SetStates) -> MetricResult:
        """Return the final numbers, from the states of all ranks."""


def _is_short_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" and dtype.itemsize < np.dtype(np.int64).itemsize


def runs_code_of_users(metric: Metric) -> bool:
    """Return whether a metric runs code of a user: it is of a class of their own, or it takes a function."""
    return type(metric).__module__.rpartition(".")[0] != _PACKAGE or hasattr(metric, "_function")


def value(number: float, goal: Goal, interval: Interval = (None, None)) -> Value:
    """Return a metric's final number as a record. JSON has no NaN, so NaN and infinities are written in `hex`."""
    if not math.isfinite(number):
        return Value(value=None, hex="nan" if math.isnan(number) else "inf" if number > 0 else "-inf", goal=goal)
    lower, upper = interval
    return Value(value=number, hex=number.hex(), lower=lower, upper=upper, goal=goal)
