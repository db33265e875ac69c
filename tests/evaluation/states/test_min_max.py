"""Keep extremes of all ranks, in any order."""

import numpy as np
import pytest
from evaluation.states.ranks import extremes, reduced
from hypothesis import given
from hypothesis import strategies as st

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states import MinMax

SHARD = Shard(0, 1)

FLOATS = st.floats(width=64)  # NaN, infinities and subnormals included

PARTS = st.lists(st.lists(FLOATS, max_size=5), min_size=1, max_size=5)  # what each rank sees


@given(PARTS, st.sampled_from(["max", "min"]), st.randoms())
def test_extremes_merge_in_any_order(parts, reduction, random):
    """Associative and commutative, with a new state as identity."""
    states = [*extremes(reduction, parts), MinMax((), "float64", reduction, Shard(0, len(parts)))]
    random.shuffle(states)
    first = states[0]
    for other in states[1:]:
        first.merge(other)
    whole = extremes(reduction, [[value for part in parts for value in part]])[0]
    assert first.values() == pytest.approx(whole.values(), rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    ("dtype", "values", "largest"),
    [
        ("float32", [[1.5, -2.0], [0.25, 3.0]], [1.5, 3.0]),
        ("int32", [[1, -2], [5, -3]], [5, -2]),
        ("bool", [[True, False], [False, False]], [1, 0]),
        ("int64", [[2**63 - 1, -(2**63)], [0, -(2**63)]], [2**63 - 1, -(2**63)]),
        ("bfloat16", [[1.0, 2.0], [0.5, 4.0]], [1.0, 4.0]),
    ],
)
def test_extremes_of_arrays_of_any_kind(dtype, values, largest):
    """Element by element, integers without passing through floats."""
    ranks = [MinMax((2,), dtype, "max", Shard(rank, 2)) for rank in range(2)]
    for state, each in zip(ranks, values, strict=True):
        state.add(np.array(each, np.float32 if dtype == "bfloat16" else dtype))
    for state in reduced(ranks):
        assert state.values().tolist() == largest


def test_extremes_refuse_what_they_cannot_hold():
    """Other shapes, other kinds, damaged packs; nothing is broadcast or rounded."""
    state = MinMax((2,), "float32", "max", SHARD)
    with pytest.raises(ValueError, match="shape"):
        state.add(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="int64"):
        state.add(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="cannot be merged"):
        state.merge(MinMax((2,), "float32", "min", SHARD))
    with pytest.raises(TypeError, match="uint64"):
        MinMax((), "uint64", "max", SHARD)
    with pytest.raises(TypeError, match="complex64"):
        MinMax((), "complex64", "max", SHARD)
    state.add(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="damaged"):
        state.unpack(2 * state.pack())
    with pytest.raises(ValueError, match="expected a pack"):
        state.unpack(state.pack()[:-1])
    with pytest.raises(ValueError, match="rows"):
        state.pack(np.array([True, True]))
