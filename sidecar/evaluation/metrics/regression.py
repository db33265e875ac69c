"""Measure how far predicted values are from the labels: MSE, RMSE, MAE, R². Imports numpy only.

Every value counts: for labels (n, d) the mean is over n·d values, as in scikit-learn's `uniform_average`.

R² is 1 - Σw(y-p)² / Σw(y-ȳ)², where the mean ȳ is unknown before the end. So Σw(y-ȳ)² is computed from Σwy² and Σwy as
a difference of numbers that can be nearly equal. Both are summed without any rounding and subtracted as fractions.
"""

import math
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.intervals import FEWEST, Interval, clustered
from sidecar.evaluation.metrics.average import Average, MeanLoss
from sidecar.evaluation.metrics.differences import difference, parts
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.pairs import values
from sidecar.evaluation.metrics.sample import IntervalOf, usual_interval
from sidecar.evaluation.states import ExactSum, GroupSums, SetStates, exact_sum, state_of


class MSE(MeanLoss):
    """Measure the mean squared error of predictions (n, …) for labels of the same shape; NaN if a value is NaN.

    Args:
        name: Name of the metric and of its number.
        interval: Function that makes the 95 % interval: see `Accuracy`.
    """

    def __init__(self, *, name: str = "mse", interval: IntervalOf = usual_interval) -> None:
        super().__init__(name, interval)

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if the shapes differ."""
        _add_errors(self._average, states, self.name, batch, squared=True)


class RMSE(MeanLoss):
    """Measure the root of the mean squared error over all examples. The interval is the root of that of the MSE.

    Args:
        name: Name of the metric and of its number.
    """

    def __init__(self, *, name: str = "rmse") -> None:
        super().__init__(name, curve=lambda mean: math.sqrt(max(mean, 0.0)))  # the end of an interval may be below 0

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if the shapes differ."""
        _add_errors(self._average, states, self.name, batch, squared=True)


class MAE(MeanLoss):
    """Measure the mean absolute error of predictions (n, …) for labels of the same shape. Arguments: see `MSE`."""

    def __init__(self, *, name: str = "mae", interval: IntervalOf = usual_interval) -> None:
        super().__init__(name, interval)

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if the shapes differ."""
        _add_errors(self._average, states, self.name, batch, squared=False)


def _add_errors(average: Average, states: SetStates, metric: str, batch: EvalBatch, *, squared: bool) -> None:
    pairs = values(metric, batch)
    with np.errstate(all="ignore"):  # NaN, infinities and overflows show in the result
        errors = difference(pairs.predicted, pairs.actual)
        errors = np.square(errors) if squared else np.abs(errors)
    average.add_batch(states, batch, errors, pairs)


_FLOATS: Final = 4  # whose sum is a sum of squares
_SPLITTER: Final = 2.0**27 + 1.0  # halves the 53 bits of a float64

_SUMS: Final = ("weight", "labels", "squares", "residuals")
_RESIDUALS: Final = "residuals by group"
_LABELS: Final = "labels by group"
_COLUMNS: Final = "columns"  # number of values of labels that have several
_OF_COLUMNS: Final = 2  # dimensions
_UNKNOWN: Final = "ungrouped"
_UNCERTAIN: Final = 1e-10  # a larger share of Σwy² around the mean of the labels is known to 6 digits

Floats = NDArray[np.float64]


class R2:
    """Measure the coefficient of determination over all labels; NaN if all labels are equal.

    All values of labels (n, …) count as one set. For several targets give each output its own R2. The interval is that
    of the ratio Σw(y-p)² / Σw(y-ȳ)² by linearisation, from the sums of examples or groups: see `clustered`.

    Args:
        name: Name of the metric and of its number.
    """

    def __init__(self, *, name: str = "r2") -> None:
        self.name = name

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states."""
        return {
            _RESIDUALS: GroupSums(info.examples, info.groups),
            _LABELS: GroupSums(info.examples, info.groups),
            _UNKNOWN: ExactSum((), "int64"),
            _COLUMNS: ExactSum((), "int64"),
            "weight": ExactSum((), "float64"),
            "labels": ExactSum((), "float64"),
            "squares": ExactSum((), "float64"),
            "residuals": ExactSum((), "float64"),
        }

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if the shapes differ."""
        pairs = values(self.name, batch)
        rows = pairs.examples
        if batch.y.ndim == _OF_COLUMNS and batch.y.shape[1] > 1:
            exact_sum(states, _COLUMNS).add_each(np.ones(len(pairs.weights), np.bool_), rows)
        (high, low), weights = parts(pairs.actual), pairs.weights.astype(np.float64)
        exact_sum(states, "weight").add_each(weights, rows)
        with np.errstate(all="ignore"):  # NaN, infinities and overflows show in the result
            weighted = [*_product(high, weights), *(_product(low, weights) if low.any() else ())]
            terms = [*_product(high, high), *((*_product(2 * high, low), *_product(low, low)) if low.any() else ())]
            squares = [part for term in terms for part in _product(term, weights)]
            residuals = np.square(difference(pairs.predicted, pairs.actual)) * weights
        for part in weighted:
            exact_sum(states, "labels").add_each(part, rows)
        for part in squares:
            exact_sum(states, "squares").add_each(part, rows)
        exact_sum(states, "residuals").add_each(residuals, rows)
        places = None if rows is None else batch.places_of(rows)
        if places is None:
            exact_sum(states, _UNKNOWN).add_each(np.ones(len(weights), np.bool_), rows)
            return
        with np.errstate(all="ignore"):
            state_of(states, _RESIDUALS, GroupSums).add_values(places, residuals, weights, rows)
            state_of(states, _LABELS, GroupSums).add_values(places, np.square(high) * weights, high * weights, rows)

    def compute(self, states: SetStates) -> MetricResult:
        """Return R²; NaN if the weight is 0, labels are equal or above 1e154, or a label or prediction is NaN."""
        number = self._number(states)
        of_columns = (
            f"{self.name} counts the labels of all columns as one set, unlike r2_score of scikit-learn: for its mean "
            f"over columns write InTurn(sklearn.metrics.r2_score)"
        )
        notes = (of_columns,) if int(exact_sum(states, _COLUMNS).integers()) else ()
        return MetricResult({self.name: value(number, "max", self._interval(states, number))}, notes=notes)

    def _interval(self, states: SetStates, number: float) -> Interval:
        """Return the interval; none for fewer than 20 groups, and labels so far from 0 that rounding shows."""
        if int(exact_sum(states, _UNKNOWN).integers()) or not math.isfinite(number):
            return None, None
        (residuals, weights), (squares, labels) = (exact_sum(states, name).round() for name in (_RESIDUALS, _LABELS))
        if np.count_nonzero(weights) < FEWEST:
            return None, None
        mean = math.fsum(labels.tolist()) / math.fsum(weights.tolist())
        distances = squares - 2 * mean * labels + mean * mean * weights
        if not math.fsum(squares.tolist()) * _UNCERTAIN < math.fsum(distances.tolist()):
            return None, None
        lower, upper = clustered(residuals.tolist(), distances.tolist())
        return (None, None) if lower is None or upper is None else (1 - upper, 1 - lower)

    def _number(self, states: SetStates) -> float:
        rounded = {name: float(exact_sum(states, name).round()) for name in _SUMS}
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
    """Return two arrays whose sum is a·b exactly, unless it exceeds 2^996 or has bits below the smallest float.

    Source: T. J. Dekker, "A floating-point technique for extending the available precision", Numerische Mathematik 18
    (1971) 224-242.
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
    """Return a finite sum with a precision of 212 bits: the squares of integers of 64 bits need more than 106."""
    rest = ExactSum(state.shape, state.dtype)
    rest.merge(state)
    total = Fraction(0)
    for _ in range(_FLOATS):
        rounded = rest.round()
        total += Fraction(float(rounded))
        rest.add(-rounded)
    return total
