"""Define a metric for every framework: its states, how a batch changes them, and the numbers made of merged states.

Imports numpy, never a framework. Predictions arrive as numpy arrays, so one metric serves TensorFlow and plain Python.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import Interval
from sidecar.evaluation.states import SetStates
from sidecar.records import Value

Goal = Literal["max", "min", "none"]


@dataclass(frozen=True, slots=True)
class EvalSetInfo:
    """Properties of an eval set that are known before it is evaluated.

    Args:
        examples: How many there are on all ranks together; None if only the end will tell: of a set that divides
            itself, or is divided by file.
        shard: Which rank this is, of how many.
    """

    examples: int | None
    shard: Shard


@dataclass(frozen=True, slots=True)
class EvalBatch:
    """One batch of n examples, as a metric gets it.

    Args:
        y: Labels (n, …).
        predictions: What the model returned for them (n, …).
        weights: One weight for each example (n,) or each of its positions (n, …); None: all count as 1. What the model
            masks has weight 0.
        first: Place of the first example in the whole eval set; None where `EvalSetInfo.examples` is.
    """

    y: NDArray[Any]
    predictions: NDArray[Any]
    weights: NDArray[Any] | None = None
    first: int | None = None


@dataclass(frozen=True, slots=True)
class MetricResult:
    """The result of a metric: numbers by name, and numbers of each class by name and class.

    `notes` are sentences that people should know about the numbers. For example
    `MetricResult({"accuracy": value(0.98, "max")})`.
    """

    values: Mapping[str, Value]
    classes: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Metric(Protocol):
    """One metric, possibly of several numbers. It holds no state of its own: it is asked for new states.

    A metric of your own, the share of predictions above a threshold:

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
        """Name under which its states travel and its numbers are shown; unique among the metrics of a task."""
        ...

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states. Raises `TaskError` if the eval set does not allow them."""
        ...

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` for labels or predictions that it cannot understand."""
        ...

    def compute(self, states: SetStates) -> MetricResult:
        """Return the final numbers, from the states of all ranks."""
        ...


def value(number: float, goal: Goal, interval: Interval = (None, None)) -> Value:
    """Return a metric's final number as it stands in records: JSON has no NaN, so `hex` holds it."""
    if not math.isfinite(number):
        return Value(value=None, hex="nan" if math.isnan(number) else "inf" if number > 0 else "-inf", goal=goal)
    lower, upper = interval
    return Value(value=number, hex=number.hex(), lower=lower, upper=upper, goal=goal)
