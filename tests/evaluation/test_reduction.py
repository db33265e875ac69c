"""What holds for every kind of state: the sum of the ranks' matrices, of the rows that anybody uses, is the whole's."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import RecordError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states import ExactSum, GatheredBatches, MinMax, PerExampleValues

SHARD = Shard(0, 1)
FLOATS = st.floats(width=64)  # NaN, infinities and subnormals included
PARTS = st.lists(st.lists(FLOATS, max_size=5), min_size=1, max_size=5)  # what each rank sees


def reduced(ranks):
    """What every rank holds after the all-reduce."""
    rows = np.sum([state.used() for state in ranks], axis=0) > 0
    total = np.sum([state.pack(rows) for state in ranks], axis=0)
    for state in ranks:
        state.unpack(total, rows)
    return ranks


def sums(parts):
    found = [ExactSum((), "float64") for _ in parts]
    for state, part in zip(found, parts, strict=True):
        state.add_each(np.array(part, np.float64))
    return found


def extremes(reduction, parts):
    found = [MinMax((), "float64", reduction, Shard(rank, len(parts))) for rank in range(len(parts))]
    for state, part in zip(found, parts, strict=True):
        for value in part:
            state.add(np.float64(value))
    return found


def one_by_one(parts):
    examples = sum(map(len, parts))
    found, first = [PerExampleValues(examples) for _ in parts], 0
    for state, part in zip(found, parts, strict=True):
        state.put(first, np.array(part, np.float64))
        first += len(part)
    return found


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


@given(PARTS)
def test_values_of_examples_keep_their_order_and_bits(parts):
    """Also minus zero and NaN come back as they were, at the place of their example."""
    expected = np.array([value for part in parts for value in part], np.float64).view(np.int64).tolist()
    for state in reduced(one_by_one(parts)):
        assert state.values().view(np.int64).tolist() == expected


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


@given(st.lists(FLOATS, max_size=6))
def test_json_keeps_every_bit(values):
    """Extremes and values of examples survive strict JSON; before the all-reduce, as workers save them."""
    for reduction in ("max", "min"):
        state = extremes(reduction, [values])[0]
        back = MinMax.from_json(json.loads(json.dumps(state.to_json(), allow_nan=False)))
        assert back.pack().tolist() == state.pack().tolist()
    state = one_by_one([values])[0]
    back = PerExampleValues.from_json(json.loads(json.dumps(state.to_json(), allow_nan=False)))
    assert back.pack().tolist() == state.pack().tolist()


@pytest.mark.parametrize(
    ("kind", "parsed"),
    [
        (MinMax, {"reduction": "sum", "shape": [], "dtype": "float32", "bits": [0]}),
        (MinMax, {"reduction": "max", "shape": [], "dtype": "float32", "bits": [0.5]}),
        (MinMax, {"reduction": "max", "shape": [2], "dtype": "float32", "bits": [0]}),
        (MinMax, {"reduction": "max"}),
        (MinMax, []),
        (PerExampleValues, {"examples": 2, "places": [2], "bits": [1]}),
        (PerExampleValues, {"examples": 2, "places": [-1], "bits": [1]}),
        (PerExampleValues, {"examples": -2, "places": [], "bits": []}),
        (PerExampleValues, {"places": [0], "bits": [1]}),
    ],
)
def test_what_is_no_saved_state_is_refused(kind, parsed):
    """Files of workers are read by others, so nothing in them is believed."""
    with pytest.raises(RecordError, match="not the saved state"):
        kind.from_json(parsed)


@given(st.lists(st.binary(max_size=20), max_size=9), st.integers(1, 4))
def test_gathered_batches_are_in_the_order_of_the_data_on_every_rank(contents, ranks):
    """However batches are divided; also through JSON, as the ranks save them."""
    states = [GatheredBatches(Shard(rank, ranks)) for rank in range(ranks)]
    for number, content in enumerate(contents):
        states[number % ranks].put(10 * number, np.frombuffer(content, np.uint8))
    merged = GatheredBatches.from_json(json.loads(json.dumps(states[0].to_json())))
    for state in states[1:]:
        merged.merge(state)
    for state in [*reduced(states), merged]:
        assert [one.tobytes() for one in state.contents()] == contents


def test_gathered_batches_without_numbers_have_an_order_of_their_own():
    """Of sets that divide themselves nobody knows the order, but all numbers of ranks lead to the same."""
    states = [GatheredBatches(Shard(rank, 3)) for rank in range(3)]
    for state, content in zip(states, (b"b", b"c", b"a"), strict=True):
        state.put(None, np.frombuffer(content, np.uint8))
    assert [one.tobytes() for one in reduced(states)[0].contents()] == [b"a", b"b", b"c"]


def test_gathered_batches_refuse_too_much_and_the_same_batch_twice():
    """On one rank, and once the sizes of all ranks are known."""
    one, other = (GatheredBatches(Shard(rank, 2), max_bytes=200) for rank in range(2))
    one.put(0, np.zeros(100, np.uint8))
    other.put(0, np.zeros(100, np.uint8))
    with pytest.raises(OverflowError):
        reduced([one, other])
    with pytest.raises(ValueError, match="0"):
        one.merge(other)
    with pytest.raises(OverflowError):
        one.put(100, np.zeros(100, np.uint8))
    with pytest.raises(RecordError):
        GatheredBatches.from_json({"batches": [[0, "?"]]})
