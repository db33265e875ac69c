"""Differences of large integers, against Python's integers and fractions."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.differences import difference, is_exact_as_float, parts
from sidecar.metrics import AUC, MAE, MSE, R2, RMSE, Accuracy, ConfusionMatrix, LogLoss

INT64, UINT64 = np.iinfo(np.int64), np.iinfo(np.uint64)
NOW = 1_760_000_000_123_456_789  # nanoseconds since 1970
INTEGERS = {
    "int64": [0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**60, 2**60 + 1, NOW, NOW + 1, INT64.min, INT64.max],
    "uint64": [0, 1, 2**53 + 1, 2**60, 2**63, 2**63 + 1, NOW, UINT64.max - 1, UINT64.max],
    "int32": [0, -(2**31), 2**31 - 1],
    "bool": [False, True],
}
FLOATS = [0.0, -0.5, 1e-300, 2.0**53, 2.0**60, float(NOW), 2.0**63, 1e300]


@pytest.mark.parametrize("of_a", INTEGERS)
@pytest.mark.parametrize("of_b", INTEGERS)
def test_integers_are_subtracted_exactly(of_a, of_b):
    """Rounded once, whatever their types."""
    pairs = list(product(INTEGERS[of_a], INTEGERS[of_b]))
    a, b = (np.array(side, dtype) for side, dtype in zip(zip(*pairs, strict=True), (of_a, of_b), strict=True))
    assert difference(a, b).tolist() == [float(int(one) - int(other)) for one, other in pairs]


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_integers_and_floats_are_subtracted(kind):
    """To a rounding of the exact difference, also where the float of the integer would be equal."""
    pairs = list(product(INTEGERS[kind], FLOATS))
    a, b = np.array([one for one, _ in pairs], kind), np.array([other for _, other in pairs])
    for found, (one, other) in zip(difference(a, b).tolist(), pairs, strict=True):
        exact = Fraction(int(one)) - Fraction(other)
        assert found == pytest.approx(float(exact), rel=1e-15)
    assert difference(b, a).tolist() == (-difference(a, b)).tolist()


def test_what_is_no_number_stays_so():
    """NaN and infinities, next to integers that need 64 bits."""
    big = np.array([NOW, NOW, NOW])
    found = difference(big, np.array([math.nan, math.inf, -math.inf]))
    assert math.isnan(found[0])
    assert found[1:].tolist() == [-math.inf, math.inf]


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_parts_are_exact(kind):
    """Two floats hold every integer, and only some integers are one float."""
    values = np.array(INTEGERS[kind], kind)
    high, low = parts(values)
    exact = [Fraction(one) + Fraction(other) for one, other in zip(high.tolist(), low.tolist(), strict=True)]
    assert exact == [int(one) for one in INTEGERS[kind]]
    assert is_exact_as_float(values).tolist() == [int(float(one)) == int(one) for one in INTEGERS[kind]]


@pytest.mark.parametrize("offset", [NOW, 2**60, -(2**62), 2**63])
@pytest.mark.parametrize("of_floats", [False, True])
def test_errors_of_times_in_nanoseconds(number, offset, of_floats):
    """Predictions that are late by 0 to 4 have these errors; as float64 all of them would be off by hundreds."""
    late = np.arange(50) % 5
    offset -= offset % 4096  # so that floats hold the labels
    y = np.array([offset + 4096 * at for at in range(50)], np.uint64 if offset >= 2**63 else np.int64)
    p = y + late.astype(y.dtype)
    if of_floats:  # a float32 model's predictions, and labels that need more bits
        y, p = y + late.astype(y.dtype), y.astype(np.float64)
    assert number(MAE(), y, p) == late.mean()
    assert number(MSE(), y, p) == np.square(late).mean()
    assert number(RMSE(), y, p) == math.sqrt(np.square(late).mean())
    exact = [Fraction(int(one)) for one in y]
    mean = sum(exact) / 50
    wanted = 1 - Fraction(int(np.square(late).sum())) / sum((one - mean) ** 2 for one in exact)
    assert number(R2(), y, p) == pytest.approx(float(wanted), rel=1e-14)


def test_scores_that_are_large_integers(number, measure):
    """Logits are compared as they are; an exact AUC refuses scores that floats cannot tell apart."""
    scores = np.array([[NOW, NOW + 1], [NOW + 1, NOW]] * 3)
    y = np.array([1, 0] * 3)
    assert number(Accuracy(), y, scores) == 1
    assert number(LogLoss(from_logits=True), y, scores) == pytest.approx(math.log(1 + math.exp(-1)))
    with pytest.raises(TaskError, match=str(NOW + 1)):
        measure(AUC(), y, scores[:, 1])
    assert measure(AUC(), y, scores[:, 1] - NOW).values["roc_auc"].value == 1


def test_a_matrix_of_too_many_classes_is_refused():
    """Before memory for it is asked for."""
    with pytest.raises(TaskError, match=r"100000.*320 GB"):
        ConfusionMatrix(100_000)
