"""Decide which kinds of numbers have an exact sum, and how many digits it needs."""

import numpy as np
import pytest

from sidecar.evaluation.states import ExactSum

FLOATS = {"float32": np.float32, "float64": np.float64}


def sum_of(dtype, values):
    state = ExactSum((), dtype)
    state.add_each(np.array(values, dtype))
    return state


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_exponent_lands_on_its_digits(dtype):
    """A full mantissa at each exponent of the format is read back unchanged, as an array and one after the other."""
    info = np.finfo(dtype)
    one = np.nextafter(FLOATS[dtype](2), FLOATS[dtype](1))
    exponents = np.arange(info.minexp - info.nmant, info.maxexp)
    values = np.concatenate([sign * np.ldexp(one, exponents).astype(dtype) for sign in (1, -1)])
    state = ExactSum(values.shape, dtype)
    state.add(values)
    state.unpack(state.pack())
    assert np.array_equal(state.round(), values)
    assert float(sum_of(dtype, values).round()) == 0


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "uint64"])
def test_all_kinds_of_integers_are_taken(dtype):
    """Booleans and unsigned integers are counted like any other."""
    state = ExactSum((2,), dtype)
    state.add(np.array([1, 0], dtype))
    state.add(np.array([1, 1], dtype))
    assert state.integers().tolist() == [2, 1]


@pytest.mark.parametrize(
    ("dtype", "delta"),
    [
        ("float32", np.float64(1)),
        ("float32", np.int64(1)),
        ("bfloat16", np.float64(1)),
        ("float64", np.longdouble(1)),
        ("float64", np.int64(1)),
        ("float64", np.complex64(1)),
        ("int64", np.float32(1)),
        ("int64", np.array("1")),
    ],
)
def test_a_dtype_that_could_lose_something_is_refused(dtype, delta):
    """A state takes only what its layout holds exactly, and says which dtypes did not fit."""
    for add in (ExactSum((), dtype).add, ExactSum((), dtype).add_each):
        with pytest.raises(TypeError, match=rf"{delta.dtype}\b.*\b{dtype}\b"):
            add(delta)


@pytest.mark.parametrize("dtype", ["complex64", "str", "longdouble"])
def test_what_has_no_exact_sum_has_no_state(dtype):
    """A state of anything but short floats and integers is refused when it is made."""
    with pytest.raises(TypeError, match="summed exactly"):
        ExactSum((), dtype)
