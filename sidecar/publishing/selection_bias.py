"""Tell what a number would be that was not chosen because it is the best of many noisy ones. Pure.

The best of 50 equally good checkpoints is the one with the most luck: its number is about two standard errors too good.
The evaluations around it do not share that luck.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final

_NEIGHBOURS: Final = 5  # on each side
_LEAST: Final = 4


def by_neighbours(numbers: Sequence[float], at: int) -> float | None:
    """Return the value at one evaluation of a straight line through those around it, without itself.

    The line of least squares goes through up to five finite numbers before and five after it. None if there are fewer
    than four. Its test has what is left of the luck in simulated runs: noise that neighbours
    share, since most of their answers are alike, stays.
    """
    first = max(0, at - _NEIGHBOURS)
    around = [
        (place - at, number)
        for place, number in enumerate(numbers[first : at + _NEIGHBOURS + 1], start=first)
        if place != at and math.isfinite(number)
    ]
    if len(around) < _LEAST:
        return None
    places, found = zip(*around, strict=True)
    try:
        return statistics.linear_regression(places, found).intercept
    except OverflowError:
        return None
