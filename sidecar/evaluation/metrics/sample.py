"""Make an interval from sums over examples of weight 1. Standard library only."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.evaluation.intervals import FEWEST, Interval, normal, wilson


@dataclass(frozen=True, slots=True)
class Sample:
    """Sums over one or more examples that have one value each and weight 1."""

    count: int  # number of values
    total: float  # exact sum of the values, rounded once
    squares: float  # exact sum of the squares in float64, rounded once
    # Number of values that are 0 or 1, and are known to lie between them: those of an accuracy, of a function that
    # returns bools, or of `Mean(bounds=(0, 1))`
    binary: int
    cubes: float = math.nan  # exact sum of the cubes in float64, rounded once; NaN: unknown


IntervalOf = Callable[[Sample], Interval]
"""A function that makes an interval: (lower, upper), or (None, None) for no interval."""


def usual_interval(sample: Sample) -> Interval:
    """Return the 95 % interval: Wilson's if all values are the 0 or 1 of a proportion, else one for skewed values.

    Other values have none if there are fewer than 20, or all are equal, which says nothing about their spread.
    """
    if sample.binary == sample.count:
        return wilson(int(sample.total), sample.count)
    if sample.count < FEWEST:
        return None, None
    lower, upper = normal(sample.total, sample.squares, sample.count, sample.cubes)
    return (None, None) if lower is None or upper is None or lower == upper else (lower, upper)
