"""Sum states of every kind: the sum of the ranks' matrices, of the rows that anybody uses, is the whole's."""

import math

import numpy as np
import pytest
from evaluation.states.ranks import extremes, reduced, sums
from hypothesis import given
from hypothesis import strategies as st

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states import ExactSum, MinMax, PerExampleValues

SHARD = Shard(0, 1)

FLOATS = st.floats(width=64)  # NaN, infinities and subnormals included

PARTS = st.lists(st.lists(FLOATS, max_size=5), min_size=1, max_size=5)  # what each rank sees


@given(PARTS)
def test_sums_of_ranks_are_the_whole(parts):
    """However examples are divided among ranks, and whichever rows they use."""
    whole = sums([[value for part in parts for value in part]])[0]
    for state in reduced(sums(parts)):
        assert np.array_equal(state.pack(), whole.pack())


@given(PARTS, st.sampled_from(["max", "min"]))
def test_extremes_of_ranks_are_the_whole(parts, reduction):
    """NaN wins wherever it was seen; a rank that saw nothing changes nothing; nothing at all is infinite."""
    values = [value for part in parts for value in part]
    function, identity = (np.max, -math.inf) if reduction == "max" else (np.min, math.inf)
    expected = function(np.array(values, np.float64)) if values else identity
    for state in reduced(extremes(reduction, parts)):
        assert state.values() == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    "make", [lambda: ExactSum((3,)), lambda: MinMax((3,), "int32", "max", SHARD), lambda: PerExampleValues(3)]
)
def test_a_state_that_saw_nothing_sends_nothing(make):
    """An identity uses no row, and what no rank uses does not travel."""
    state = make()
    assert not state.used().any()
    assert state.pack(state.used()).size == 0
    state.unpack(np.zeros(0, np.int64), state.used())
    assert not state.used().any()
    assert state.pack().shape == (state.rows * state.width,)


def test_a_matrix_of_counts_sends_a_ninth():
    """Whole numbers in a float state fill one of nine rows; one fraction anywhere brings in the two that it needs."""
    counts, mixed = ExactSum((100, 100)), ExactSum((100, 100))
    counts.add(np.ones((100, 100), np.float32))
    mixed.add(np.full((100, 100), 0.75, np.float32))
    assert (counts.used().sum(), mixed.used().sum()) == (1, 2)
    first, second = reduced([counts, mixed])
    assert first.round().tolist() == second.round().tolist() == np.full((100, 100), 1.75).tolist()
