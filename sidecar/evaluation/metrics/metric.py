"""What a metric is, whatever the framework: states, how a batch changes them, and numbers made of the reduced states.

Imports numpy, never a framework. Predictions arrive as numpy arrays, so one metric serves TensorFlow and others alike.
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
    """What is known of an eval set before it is evaluated.

    Args:
        examples: How many there are on all ranks together; None if only the end will tell: of a set that divides
            itself, or is divided by file.
        shard: Which rank this is, of how many.
    """

    examples: int | None
    shard: Shard


@dataclass(frozen=True, slots=True)
class EvalBatch:
    """One batch of n examples as a metric sees it.

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
    """What a metric came to: numbers by name, and of those that have one per class, by name and class.

    `notes` are sentences that people should know of the numbers.
    """

    values: Mapping[str, Value]
    classes: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Metric(Protocol):
    """One metric, possibly of several numbers. It holds no state of its own: it is asked for fresh ones."""

    @property
    def name(self) -> str:
        """Under which its states travel, and its numbers are shown; unique among the metrics of a task."""
        ...

    def states(self, info: EvalSetInfo) -> SetStates:
        """The identity of every state. Raises `TaskError` if this info does not allow them."""
        ...

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` for labels or predictions that it cannot understand."""
        ...

    def compute(self, states: SetStates) -> MetricResult:
        """The final numbers, from the states of all ranks."""
        ...


def value(number: float, goal: Goal, interval: Interval = (None, None)) -> Value:
    """A metric's final number as it stands in records: JSON knows no NaN, so `hex` says it."""
    if not math.isfinite(number):
        return Value(value=None, hex="nan" if math.isnan(number) else "inf" if number > 0 else "-inf", goal=goal)
    lower, upper = interval
    return Value(value=number, hex=number.hex(), lower=lower, upper=upper, goal=goal)
