"""Round a sum of floats once, in any order and grouping."""

import json
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sidecar.errors import RecordError
from sidecar.evaluation.states import ExactSum

FLOATS = {"float32": np.float32, "float64": np.float64}

ENDS = {name: (np.finfo(kind).smallest_subnormal, np.finfo(kind).max) for name, kind in FLOATS.items()}


def finite(dtype):
    """Floats over the whole range, with its two ends and its integers more often than chance."""
    width = 32 if dtype == "float32" else 64
    ends = [sign * float(end) for end in ENDS[dtype] for sign in (1, -1)]
    whole = st.integers(-(2**24), 2**24).map(float)
    return st.one_of(st.floats(allow_nan=False, allow_infinity=False, width=width), st.sampled_from(ends), whole)


def batches(values):
    return st.sampled_from(sorted(FLOATS)).flatmap(lambda dtype: st.tuples(st.just(dtype), st.lists(values(dtype))))


def exact(values):
    """The correctly rounded sum, by the fractions of the standard library."""
    total = sum((Fraction(float(value)) for value in values), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def sum_of(dtype, values):
    state = ExactSum((), dtype)
    state.add_each(np.array(values, dtype))
    return state


def same(first, second):
    return np.array_equal(first.pack(), second.pack())


@given(batches(finite))
def test_a_sum_of_floats_is_rounded_once(batch):
    """Over the whole range of both floats the sum is that of fractions, whether added one by one or together."""
    dtype, values = batch
    one_by_one = ExactSum((), dtype)
    for value in values:
        one_by_one.add(FLOATS[dtype](value))
    assert float(sum_of(dtype, values).round()) == exact(values)
    assert same(one_by_one, sum_of(dtype, values))


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_bit_is_kept_between_the_largest_and_the_smallest(dtype):
    """The smallest subnormal survives beside the largest number, with either sign."""
    smallest, largest = ENDS[dtype]
    for sign in (1, -1):
        kept = sum_of(dtype, [largest, sign * smallest, -largest])
        assert float(kept.round()) == sign * float(smallest)
        assert float(sum_of(dtype, [sign * largest] * 3).round()) == exact([sign * float(largest)] * 3)


@pytest.mark.parametrize(
    ("values", "rounded"),
    [
        ([2.0**53, 1.0], 2.0**53),
        ([2.0**53, 1.0, 2.0**-1074], 2.0**53 + 2),
        ([2.0**53, 3.0], 2.0**53 + 4),
        ([1.0, 2.0**-53], 1.0),
        ([1.0, 2.0**-52, 2.0**-53], 1.0 + 2.0**-51),
        ([float(np.finfo(np.float64).max), 2.0**969], float(np.finfo(np.float64).max)),
        ([float(np.finfo(np.float64).max), 2.0**970], math.inf),
        ([-0.0, -0.0], 0.0),
    ],
)
def test_ties_go_to_even_and_the_top_to_infinity(values, rounded):
    """Halfway cases follow IEEE 754, also where the sum leaves the range of float64."""
    assert float(sum_of("float64", values).round()) == rounded
    assert float(sum_of("float64", [-value for value in values]).round()) == -rounded


def test_negative_zero_counts_as_zero():
    """The sum of nothing but -0.0 is the identity, without a sign."""
    state = sum_of("float32", [-0.0])
    assert same(state, ExactSum())
    assert math.copysign(1, float(state.round())) == 1


@given(hnp.arrays(np.float32, (4, 2, 3), elements=finite("float32")))
def test_each_element_has_its_own_sum(deltas):
    """Arrays are summed element by element, in their own shape."""
    state = ExactSum((2, 3))
    for delta in deltas:
        state.add(delta)
    assert state.round().shape == (2, 3)
    assert state.round().ravel().tolist() == [exact(deltas[:, row, column]) for row in range(2) for column in range(3)]


def any_float(dtype):
    return st.one_of(finite(dtype), st.sampled_from([math.nan, math.inf, -math.inf]))


@given(batches(any_float), st.randoms(use_true_random=False))
def test_order_and_grouping_do_not_matter(batch, random):
    """Values shuffled and divided among ranks, merged in any order or summed as packs, give the same pack."""
    dtype, values = batch
    whole = sum_of(dtype, values)
    shuffled = random.sample(values, len(values))
    cuts = sorted(random.choices(range(len(values) + 1), k=2))
    ranks = [shuffled[: cuts[0]], shuffled[cuts[0] : cuts[1]], shuffled[cuts[1] :]]

    left = sum_of(dtype, ranks[0])
    left.merge(sum_of(dtype, ranks[1]))
    left.merge(sum_of(dtype, ranks[2]))
    tail = sum_of(dtype, ranks[1])
    tail.merge(sum_of(dtype, ranks[2]))
    right = sum_of(dtype, ranks[0])
    right.merge(tail)
    reduced = ExactSum((), dtype)
    reduced.unpack(sum(sum_of(dtype, rank).pack() for rank in ranks))

    assert same(left, whole)
    assert same(right, whole)
    assert same(reduced, whole)
    assert np.array_equal(reduced.round(), whole.round(), equal_nan=True)


@given(batches(any_float))
def test_a_new_sum_is_the_identity(batch):
    """Merging an empty state from either side changes nothing, nor does it change the other state."""
    dtype, values = batch
    state, identity = sum_of(dtype, values), ExactSum((), dtype)
    state.merge(identity)
    assert same(state, sum_of(dtype, values))
    assert same(identity, ExactSum((), dtype))
    identity.merge(state)
    assert same(identity, state)


def test_a_state_merged_into_itself_doubles():
    """The two arguments of a merge may be one object."""
    state = sum_of("float32", [0.5, 3.0])
    state.merge(state)
    assert float(state.round()) == 7.0


@pytest.mark.parametrize(
    ("values", "rounded"),
    [
        ([1.0, math.nan], math.nan),
        ([math.inf, 1.0], math.inf),
        ([-math.inf, 0.5], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.inf, math.nan], math.nan),
    ],
)
def test_what_is_not_finite_stays_in_its_element(values, rounded):
    """NaN and infinities follow IEEE 754 however often they come and on however many ranks, and leave others alone."""
    reduced, rank = ExactSum((2,)), ExactSum((2,))
    for value in values * 5:
        rank.add(np.array([value, 0.5], np.float32))
    reduced.unpack(sum([rank.pack()] * 1000))
    assert np.array_equal(reduced.round(), [rounded, 2500.0 * len(values)], equal_nan=True)


def test_counts_pass_what_float32_can_count():
    """Ones are counted beyond 2^24, where a float32 variable stands still, and fractions beside them are kept."""
    state = sum_of("float32", [2.0**24])
    for _ in range(3):
        state.add_each(np.ones((5, 5), np.float32))
    assert float(state.round()) == 2**24 + 75
    state.add(np.float32(0.5))
    assert float(state.round()) == 2**24 + 75.5


def test_digits_are_carried_before_they_overflow():
    """More additions than fit between two carries, of values that fill a digit, stay exact."""
    values = np.full(2**19, 2.0**44 - 2**20, np.float32)
    state = ExactSum()
    for _ in range(3):
        state.add_each(values)
    assert float(state.round()) == 3 * 2**19 * (2**44 - 2**20)
    values[::2] = np.float32(-1 / 3)
    state.add_each(values)
    assert float(state.round()) == float(
        Fraction(float(values[0])) * 2**18 + Fraction(float(values[1])) * 2**18 + 3 * 2**19 * (2**44 - 2**20)
    )


def test_two_sums_that_are_due_for_a_carry_can_merge():
    """Room that was only reserved on either side is no reason to refuse."""
    values = np.full(2**18, 0.75, np.float32)
    state = sum_of("float32", values)
    state.merge(sum_of("float32", values))
    assert float(state.round()) == 1.5 * values.size


def test_whole_numbers_take_one_digit():
    """Until a value needs them the other digits do not exist, and a pack of whole numbers does not bring them back."""
    state = ExactSum((100,))
    state.add(np.arange(-50, 50, dtype=np.float32))
    state.unpack(state.pack() * 3)
    whole = len(pickle.dumps(state))
    assert np.array_equal(state.round(), 3.0 * np.arange(-50, 50))
    state.add(np.full(100, 0.1, np.float32))
    assert len(pickle.dumps(state)) > 3 * whole


def test_a_large_array_is_added_in_blocks():
    """Each value reaches its own element beyond the first block, be it whole, fractional or not finite."""
    delta = np.ones((3, 10_000), np.float32)
    delta[2, 9_998:] = 0.25, math.nan
    state = ExactSum(delta.shape)
    state.add(delta)
    state.add(delta)
    assert np.array_equal(state.round(), 2 * delta, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "words"), [("bfloat16", 9), ("float32", 9), ("float64", 51), ("int32", 1), ("bool", 1)]
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_the_length_of_a_pack_depends_on_shape_and_dtype_only(dtype, words, shape):
    """An empty rank's pack has the length of everybody's, so that ranks agree without talking."""
    empty, used = ExactSum(shape, dtype), ExactSum(shape, dtype)
    values = np.full(shape, 3, np.int64) if used.is_integral else np.full(shape, 0.1, np.float16)
    used.add(values)
    assert (empty.rows, empty.width) == (words, math.prod(shape))
    assert empty.pack().shape == used.pack().shape == (words * math.prod(shape),)


@pytest.mark.parametrize("value", [ENDS["float32"][1], -ENDS["float32"][1], 2.0**43, -1.0, 1 / 3])
def test_thousands_of_packs_add_up(value):
    """The int64 sum of 8192 packs is exact for values anywhere in the range."""
    state = sum_of("float32", [value] * 3)
    state.unpack(state.pack() * 8192)
    assert float(state.round()) == exact([np.float32(value)] * 3 * 8192)


@given(st.lists(st.integers(-(2**40), 2**40)))
def test_integers_are_summed_in_int64(values):
    """An integer state gives Python's sum, as integers and rounded."""
    state = sum_of("int64", values)
    assert int(state.integers()) == sum(values)
    assert float(state.round()) == float(sum(values))


@pytest.mark.parametrize("value", [2**62, -(2**62), 2**64 - 1])
def test_an_integer_overflow_is_an_error(value):
    """A sum that could leave int64 is refused and changes nothing."""
    state = sum_of("int64", [1, 1])
    with pytest.raises(OverflowError, match="could overflow int64"):
        state.add(np.array(value))
    assert int(state.integers()) == 2


def test_an_integer_too_large_for_all_ranks_is_not_packed():
    """A sum that could overflow only once the ranks' packs are added is refused where it is still visible."""
    state = sum_of("int64", [2**49 - 1])
    assert int(state.pack()[0]) * 8192 < 2**62
    state.add(np.array(1))
    with pytest.raises(OverflowError, match="2\\^49"):
        state.pack()


def test_an_unpacked_integer_still_guards_its_range():
    """The ranks' sum may fill the range; adding to it afterwards is refused as before."""
    state = ExactSum((), "int64")
    state.unpack(np.array([2**62]))
    with pytest.raises(OverflowError, match="could overflow int64"):
        state.add(np.array(1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_half_precision_is_widened(dtype):
    """The three short floats share one layout, take each other's values and merge."""
    state = ExactSum((), dtype)
    state.add(np.float16(2**-24))
    state.merge(sum_of("float32", [1.0]))
    assert float(state.round()) == 1 + 2**-24


def test_shapes_must_agree():
    """Deltas, merges and packs of another shape or layout are refused; nothing is broadcast."""
    state = ExactSum((2, 3))
    with pytest.raises(ValueError, match="shape"):
        state.add(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="use add"):
        state.add_each(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="cannot be merged"):
        state.merge(ExactSum((3, 2)))
    with pytest.raises(ValueError, match="cannot be merged"):
        state.merge(ExactSum((2, 3), "float64"))
    with pytest.raises(ValueError, match="expected a pack"):
        state.unpack(np.zeros(5, np.int64))
    with pytest.raises(ValueError, match="expected a pack"):
        state.unpack(np.zeros(state.rows * state.width))
    with pytest.raises(TypeError, match="use round"):
        state.integers()


def test_a_damaged_pack_is_refused():
    """A digit that no sum of 8192 packs can have is an error, not a number."""
    pack = ExactSum().pack()
    pack[0] = np.iinfo(np.int64).min
    with pytest.raises(OverflowError, match="damaged"):
        ExactSum().unpack(pack)


def test_a_state_is_independent_of_the_arrays_it_met():
    """Neither a pack that is changed later nor integers that were handed out reach into the state."""
    state = sum_of("int64", [7])
    pack = state.pack()
    state.unpack(pack)
    pack[:] = 0
    state.integers()[...] = 0
    assert int(state.integers()) == 7


@given(batches(any_float))
def test_json_keeps_every_bit(batch):
    """A state written as strict JSON comes back with the same pack."""
    dtype, values = batch
    state = sum_of(dtype, values)
    back = ExactSum.from_json(json.loads(json.dumps(state.to_json(), allow_nan=False)))
    assert (back.shape, back.dtype) == (state.shape, state.dtype)
    assert same(back, state)


def test_json_of_arrays_leaves_out_zeros():
    """A confusion matrix costs one row, an integer state none when it is empty."""
    state = ExactSum((2, 2))
    state.add(np.eye(2, dtype=np.float32))
    assert state.to_json() == {
        "reduction": "sum",
        "shape": [2, 2],
        "dtype": "float32",
        "rows": {"4": [1, 0, 0, 1]},
    }
    assert ExactSum((3,), "int64").to_json() == {"reduction": "sum", "shape": [3], "dtype": "int64", "rows": {}}


@pytest.mark.parametrize(
    "change",
    [
        {"shape": None},
        {"shape": ["2"]},
        {"dtype": "complex64"},
        {"rows": []},
        {"rows": {"9": [1, 1]}},
        {"rows": {"4": [1, 1, 1]}},
        {"rows": {"4": [1.5, 1]}},
        {"rows": {"4": [2**63 - 1, 1]}},
        {"rows": {"4": [2**70, 1]}},
    ],
)
def test_json_of_something_else_is_refused(change):
    """Any damage of a state file becomes one kind of error."""
    good = {"shape": [2], "dtype": "float32", "rows": {"4": [1, 2]}}
    assert ExactSum.from_json(good).round().tolist() == [1, 2]
    with pytest.raises(RecordError, match="not the saved state"):
        ExactSum.from_json(good | change)
