"""Make an interval from unweighted values of single examples, summed up. Standard library only."""

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.evaluation.intervals import Interval, normal, wilson


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of each of `count` examples, at least one, each of weight 1.

    Args:
        count: How many.
        total: Their exact sum, rounded once.
        squares: The exact sum of their squares in float64, rounded once.
        binary: How many of them are 0 or 1.
    """

    count: int
    total: float
    squares: float
    binary: int


IntervalOf = Callable[[Sample], Interval]
"""A way to make an interval: (lower, upper), or (None, None)."""


def usual_interval(sample: Sample) -> Interval:
    """Return the 95 % interval: Wilson's if all values are 0 or 1, else the normal one."""
    if sample.binary == sample.count:
        return wilson(int(sample.total), sample.count)
    return normal(sample.total, sample.squares, sample.count)
