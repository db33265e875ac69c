"""Add many values at once as if one after the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states import ExactSum, MinMax

SHAPES = st.sampled_from([(), (3,), (2, 2), (0,)])


@st.composite
def deltas(draw, dtype):
    return draw(arrays(dtype, (draw(st.integers(1, 5)), *draw(SHAPES))))


@given(deltas(np.float32))
def test_many_at_once_are_one_after_the_other(values):
    """The same bits, whatever is added: subnormals, infinities and NaN, too."""
    together, one_by_one = ExactSum(values.shape[1:]), ExactSum(values.shape[1:])
    together.add_all(values)
    for each in values:
        one_by_one.add(each)
    assert np.array_equal(together.pack(), one_by_one.pack())


@pytest.mark.parametrize("shape", [(), (7,), (20_000,)])
def test_more_than_fit_into_a_block(shape):
    """Blocks are cut between rows and within them; the rows are full mantissas, which must be carried in between."""
    values = np.full((40_000 if shape != (20_000,) else 3, *shape), -(2.0**24 - 1), np.float32)
    state = ExactSum(shape)
    for _ in range(3):
        state.add_all(values * np.float32(2**-30))
    assert np.array_equal(state.round(), np.full(shape, -3 * len(values) * (2.0**24 - 1) * 2**-30))


@given(deltas(np.float64), st.sampled_from(["max", "min"]))
def test_extremes_of_many(values, reduction):
    """The same as of one after the other; NaN wins."""
    together, one_by_one = (MinMax(values.shape[1:], "float64", reduction, Shard(0, 1)) for _ in range(2))
    together.add_all(values)
    for each in values:
        one_by_one.add(each)
    assert np.array_equal(together.values(), one_by_one.values(), equal_nan=True)


def test_another_shape_is_refused():
    """A delta of one shape more or less would be broadcast, silently."""
    with pytest.raises(ValueError, match=r"\(3,\).*\(\)"):
        ExactSum(()).add_all(np.zeros((2, 3), np.float32))
