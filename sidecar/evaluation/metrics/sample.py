"""Make an interval from sums over examples of weight 1. Standard library only."""

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.evaluation.intervals import Interval, normal, wilson


@dataclass(frozen=True, slots=True)
class Sample:
    """Sums over one or more examples that have one value each and weight 1."""

    count: int  # number of values
    total: float  # exact sum of the values, rounded once
    squares: float  # exact sum of the squares in float64, rounded once
    # Number of values that are 0 or 1, and are known to lie between them: those of an accuracy, of a function that
    # returns bools, or of `Mean(bounds=(0, 1))`
    binary: int


IntervalOf = Callable[[Sample], Interval]
"""A function that makes an interval: (lower, upper), or (None, None) for no interval."""


def usual_interval(sample: Sample) -> Interval:
    """Return the 95 % interval: Wilson's if all values are the 0 or 1 of a proportion, else Student's.

    Other values that are all equal say nothing about their spread, so they have no interval.
    """
    if sample.binary == sample.count:
        return wilson(int(sample.total), sample.count)
    lower, upper = normal(sample.total, sample.squares, sample.count)
    return (None, None) if lower is None or upper is None or lower == upper else (lower, upper)
