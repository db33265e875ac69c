"""Keep one value for every example at its place."""

import numpy as np
import pytest
from evaluation.states.ranks import one_by_one, reduced
from hypothesis import given
from hypothesis import strategies as st

from sidecar.evaluation.states import PerExampleValues

FLOATS = st.floats(width=64)  # NaN, infinities and subnormals included

PARTS = st.lists(st.lists(FLOATS, max_size=5), min_size=1, max_size=5)  # what each rank sees


@given(PARTS)
def test_values_of_examples_keep_their_order_and_bits(parts):
    """Also minus zero and NaN come back as they were, at the place of their example."""
    expected = np.array([value for part in parts for value in part], np.float64).view(np.int64).tolist()
    for state in reduced(one_by_one(parts)):
        assert state.values().view(np.int64).tolist() == expected


def test_places_of_examples_are_checked():
    """A value beyond the end, a second dimension, or more precision than there is room for is refused."""
    state = PerExampleValues(3)
    for first, values in ((2, np.zeros(2)), (-1, np.zeros(1)), (0, np.zeros((1, 1)))):
        with pytest.raises(ValueError, match="do not fit"):
            state.put(first, values)
    with pytest.raises(TypeError, match="float64"):
        state.put(0, np.zeros(1, np.longdouble))
    state.put(1, np.array([1, 2], np.int32))
    assert state.values().tolist() == [0, 1, 2]
