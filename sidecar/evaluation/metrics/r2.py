"""R², the share of the labels' variance that predictions explain. Imports numpy only.

1 - Σw(y-p)² / Σw(y-ȳ)², where the mean ȳ is not known before the end. So Σw(y-ȳ)² is made of Σwy² and Σwy, a difference
of numbers that can be nearly equal: both are summed without any rounding and subtracted as fractions.
"""

import math
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.pairs import values
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum

_SPLITTER: Final = 2.0**27 + 1.0  # halves the 53 bits of a float64

Floats = NDArray[np.float64]


class R2:
    """Coefficient of determination over all labels; NaN where they are all equal, as there is nothing to explain.

    Of labels (n, …) all values count as one set: for several targets give each output an R2 of its own. No interval.

    Args:
        name: Of the metric and its number.
    """

    def __init__(self, *, name: str = "r2") -> None:
        self.name = name

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        del info  # sums do not depend on it
        return {
            "weight": ExactSum((), "float64"),
            "labels": ExactSum((), "float64"),
            "squares": ExactSum((), "float64"),
            "residuals": ExactSum((), "float64"),
        }

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` for shapes that differ."""
        pairs = values(self.name, batch)
        y, weights = pairs.actual.astype(np.float64), pairs.weights.astype(np.float64)
        exact_sum(states, "weight").add_each(weights)
        with np.errstate(all="ignore"):  # what is not finite, or overflows, shows in the result
            weighted = _product(y, weights)
            squares = [part for each in _product(y, y) for part in _product(each, weights)]
            residuals = np.square(pairs.predicted.astype(np.float64) - y) * weights
        for part in weighted:
            exact_sum(states, "labels").add_each(part)
        for part in squares:
            exact_sum(states, "squares").add_each(part)
        exact_sum(states, "residuals").add_each(residuals)

    def compute(self, states: SetStates) -> MetricResult:
        """Return R²; NaN for no weight, equal labels, labels beyond 1e154, and labels or predictions that are NaN."""
        return MetricResult({self.name: value(self._number(states), "max")})

    def _number(self, states: SetStates) -> float:
        rounded = {name: float(exact_sum(states, name).round()) for name in states}
        if not rounded["weight"] or not all(math.isfinite(rounded[name]) for name in ("labels", "squares")):
            return math.nan
        weight, labels, squares = (_fraction(exact_sum(states, name)) for name in ("weight", "labels", "squares"))
        variance = squares - labels * labels / weight
        if variance <= 0:
            return math.nan
        if not math.isfinite(rounded["residuals"]):
            return -rounded["residuals"]
        try:
            return float(1 - _fraction(exact_sum(states, "residuals")) / variance)
        except OverflowError:
            return -math.inf


def _product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return two arrays whose sum is a·b exactly, unless it is beyond 2^996 or ends below the smallest number.

    T. J. Dekker, "A floating-point technique for extending the available precision", Numerische Mathematik 18 (1971)
    224-242.
    """
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    return product, np.where(np.isfinite(error), error, 0.0)


def _halves(a: Floats) -> tuple[Floats, Floats]:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def _fraction(state: ExactSum) -> Fraction:
    """Return a finite sum to 106 bits."""
    high = state.round()
    rest = ExactSum(state.shape, state.dtype)
    rest.merge(state)
    rest.add(-high)
    return Fraction(float(high)) + Fraction(float(rest.round()))
