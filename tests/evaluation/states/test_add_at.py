"""Add values to cells without rounding."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.evaluation.states import ExactSum

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def added(pairs, dtype="float32"):
    state = ExactSum((2, 3), dtype)
    state.add_at(np.array([cell for cell, _ in pairs], np.int64), np.array([each for _, each in pairs], dtype))
    return state


@given(st.lists(st.tuples(st.integers(0, 5), FLOATS), max_size=12))
def test_a_cell_is_an_exact_sum(pairs):
    """The same state as when whole arrays are added one after the other, whatever is in a cell twice."""
    wanted = ExactSum((2, 3))
    for cell, each in pairs:
        delta = np.zeros(6, np.float32)
        delta[cell] = each
        wanted.add(delta.reshape(2, 3))
    assert np.array_equal(added(pairs).pack(), wanted.pack())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-(2**40), 2**40)), max_size=12))
def test_integers_stay_integers(pairs):
    """Integers are added without rounding, so counts stay exact."""
    wanted = [sum(each for cell, each in pairs if cell == own) for own in range(6)]
    assert added(pairs, "int64").integers().reshape(-1).tolist() == wanted


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_more_values_than_a_digit_holds(dtype):
    """2^18 full mantissas in one call, and as many again: carried in between."""
    value = 2**24 - 1 if dtype == "int64" else np.float32(1 - 2**-24)
    state, count = ExactSum((1,), dtype), 2**18 + 5
    for _ in range(2):
        state.add_at(np.zeros(count, np.int64), np.full(count, value, dtype))
    assert float(state.round()[0]) == 2 * count * float(value)


def test_integers_that_could_overflow_are_refused():
    """Integers are refused before their sum overflows."""
    state = ExactSum((1,), "int64")
    with pytest.raises(OverflowError, match="could overflow"):
        state.add_at(np.zeros(4, np.int64), np.full(4, 2**61))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_flags_its_element(value):
    """As when whole arrays are added, also where it stands twice, and nowhere else."""
    found = added([(4, value), (4, 1.0), (4, value), (0, 1.0)]).round().reshape(-1).tolist()
    assert found == pytest.approx([1.0, 0, 0, 0, value, 0], nan_ok=True)


def test_json_is_that_of_a_sum():
    """So that who reads saved states need not know about cells."""
    saved = json.loads(json.dumps(added([(4, 0.5), (4, 1.0)]).to_json(), allow_nan=False))
    assert ExactSum.from_json(saved).round().tolist() == [[0, 0, 0], [0, 1.5, 0]]
