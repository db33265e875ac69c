"""Numbers read from pickles without loading them, compared with what loading gives."""

import pickle
import time
from collections import OrderedDict
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.checkpoints.formats.pickle_numbers import number_at_end, numbers_at_top
from sidecar.checkpoints.work_budget import WorkBudget

READ_BYTES = 16 * 1024  # as much as TorchZip reads
KEYS = st.sampled_from(("epoch", "global_step", "step", "state_dict", "model", "loss", "x" * 300)) | st.text(max_size=3)
NUMBERS = st.integers(-(2**70), 2**70) | st.integers(0, 300)
PLAIN = st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | KEYS | st.binary(max_size=3)
HASHABLE = PLAIN | st.tuples(PLAIN) | st.tuples(KEYS, NUMBERS) | st.frozensets(NUMBERS, max_size=3)
FLAT = HASHABLE | st.builds(Fraction, st.integers(0, 9), st.integers(1, 9)) | st.just(Fraction)


def nested(values):
    """Put values into what users put into checkpoints."""
    return (
        st.lists(values, max_size=4)
        | st.tuples(values)
        | st.tuples(values, values)
        | st.tuples(values, values, values)
        | st.dictionaries(KEYS, values, max_size=4)
        | st.dictionaries(HASHABLE, values, max_size=4)
        | st.dictionaries(KEYS, values, max_size=3).map(OrderedDict)
        | st.sets(HASHABLE, max_size=3)
    )


VALUES = st.recursive(FLAT, nested, max_leaves=12)
PROTOCOLS = st.sampled_from((2, 3, 4, 5))


def numbers_of(loaded) -> dict[str, int]:
    """The numbers that a checkpoint's step may be."""
    if type(loaded) is not dict:
        return {}
    return {
        key: value
        for key, value in loaded.items()
        if isinstance(key, str) and type(value) is int and 0 <= value < 2**63
    }


@settings(max_examples=2 * settings().max_examples)
@given(st.dictionaries(KEYS | HASHABLE, VALUES, max_size=6) | VALUES, PROTOCOLS)
def test_the_numbers_are_those_of_the_loaded_mapping(value, protocol):
    """All of them, and no others, whatever else the pickle holds."""
    data = pickle.dumps(value, protocol=protocol)
    assert numbers_at_top(data, WorkBudget()) == numbers_of(pickle.loads(data))


def test_a_mapping_of_more_items_than_one_opcode_takes():
    """Pickle writes them in parts of 1000."""
    for count in (1, 2, 999, 1000, 1001, 2001):
        value = {f"key {number}": number for number in range(count)}
        for protocol in (2, 5):
            assert numbers_at_top(pickle.dumps(value, protocol=protocol), WorkBudget()) == value


def test_one_object_under_several_keys():
    """A text that was written before is referred to by its place, and so is the mapping itself."""
    name = "step"
    value = {"name": name, name: 7, "inner": {name: 9}, "more": [name, 11], "last": 12}
    value["self"] = value
    for protocol in (2, 3, 4, 5):
        assert numbers_at_top(pickle.dumps(value, protocol=protocol), WorkBudget()) == {"step": 7, "last": 12}


CONTENT = st.recursive(
    PLAIN | st.lists(PLAIN, max_size=4), lambda each: st.dictionaries(KEYS, each, max_size=5), max_leaves=20
)


@settings(max_examples=2 * settings().max_examples)
@given(st.dictionaries(KEYS, CONTENT, min_size=1, max_size=8), PROTOCOLS, st.data())
def test_a_beginning_holds_no_other_numbers(value, protocol, data):
    """Wherever the pickle is cut off, a number that is returned is one of the whole mapping."""
    whole = pickle.dumps(value, protocol=protocol)
    found = numbers_at_top(whole[: data.draw(st.integers(0, len(whole)))], WorkBudget())
    assert found.items() <= numbers_of(value).items()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_beginning_holds_the_step_before_the_weights(protocol):
    """As torch.save and Lightning write it: the step, then a state dict of more than the part that is read."""
    weights = OrderedDict((f"layer.{number}.weight", [number]) for number in range(5000))
    whole = pickle.dumps({"epoch": 3, "global_step": 500, "version": "2.6.6", "state_dict": weights}, protocol=protocol)
    assert len(whole) > READ_BYTES
    assert numbers_at_top(whole[:READ_BYTES], WorkBudget()) == {"epoch": 3, "global_step": 500}
    whole = pickle.dumps({"step": 5, "model": weights, "epoch": 6}, protocol=protocol)
    assert numbers_at_top(whole[:READ_BYTES], WorkBudget()) == {"step": 5}
    whole = pickle.dumps({"model": weights, "step": 5}, protocol=protocol)
    assert numbers_at_top(whole[:READ_BYTES], WorkBudget()) == {}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_an_end_holds_the_step_after_the_weights(protocol):
    """Among the last items of the outermost mapping, and of no inner one."""
    weights = OrderedDict((f"layer.{number}.weight", [number]) for number in range(5000))

    def found(value):
        return number_at_end(pickle.dumps(value, protocol=protocol)[-READ_BYTES:], "step", WorkBudget())

    assert found({"model": weights, "step": 70}) == 70
    assert found({"model": weights, "step": 70, "inner": {"step": 5}}) == 70
    assert found({"model": weights, "step": 70, "loss": [0.5, {"a": 1}], "name": "m"}) == 70
    assert found({"model": weights, "inner": {"a": 2, "step": 5}}) is None
    assert found({"model": weights, "inner": {"step": 5}}) is None
    assert found({"model": weights, "inner": {"more": {"a": 1, "step": 5}, "b": 2}}) is None
    assert found({"model": weights, "step": -1}) is None
    assert found(OrderedDict({"model": weights, "step": 70})) == 70
    assert found([weights, "step", 70]) is None


@settings(max_examples=2 * settings().max_examples)
@given(st.dictionaries(KEYS, CONTENT, min_size=1, max_size=8), PROTOCOLS, KEYS, st.data())
def test_an_end_holds_no_other_numbers(value, protocol, key, data):
    """An end of a pickle gives the right number or none, wherever that end begins."""
    whole = pickle.dumps(value, protocol=protocol)
    found = number_at_end(whole[data.draw(st.integers(0, len(whole))) :], key, WorkBudget())
    assert found in (None, numbers_of(value).get(key))


@settings(max_examples=2 * settings().max_examples)
@given(st.binary(max_size=200), st.sampled_from((b"", b"\x80\x02}", b"\x80\x02}(", b"\x80\x04}\x94(\x8c\x04step")))
def test_arbitrary_bytes(data, head):
    """Nothing is raised, and what is returned are texts and numbers."""
    for key, number in numbers_at_top(head + data, WorkBudget()).items():
        assert isinstance(key, str)
        assert 0 <= number < 2**63


@settings(max_examples=2 * settings().max_examples)
@given(st.dictionaries(KEYS, VALUES, max_size=5), PROTOCOLS, st.data())
def test_damaged_pickles(value, protocol, data):
    """Some bytes of a real one are others."""
    whole = bytearray(pickle.dumps(value, protocol=protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    numbers_at_top(bytes(whole), WorkBudget())


def test_invalid_escapes():
    """Python warns about them when pickletools splits such a text."""
    assert numbers_at_top(b"}(X\x04\x00\x00\x00stepK\x05X\x01\x00\x00\x00aS'\\d'\nu.", WorkBudget()) == {"step": 5}


WORST = {
    "marks": b"}" + b"(" * READ_BYTES,
    "mappings": b"}" * READ_BYTES,
    "numbers": b"}(" + b"K\1" * (READ_BYTES // 2),
    "one_tuple": b"}(" + b"N" * (READ_BYTES - 3) + b"t",
    "tuples": b"}(" + b"N\x85" * (READ_BYTES // 2),
    "notes": b"}" + b"\x94" * READ_BYTES,
    "copies": b"}(" + b"2" * READ_BYTES,
    "items": b"}" + b"(K\1K\1u" * (READ_BYTES // 6),
    "digits": b"}(I" + b"9" * READ_BYTES + b"\n",
    "a_long_number": b"}(\x8b\x00\x3f\x00\x00" + b"\x7f" * READ_BYTES,
    "a_long_text": b"}(X\xff\xff\xff\x7f" + b"a" * READ_BYTES,
    "a_longer_text": b"}(\x8d" + b"\xff" * 7 + b"\x7f" + b"a" * READ_BYTES,
    "escapes": b"}(V" + b"\\u0041" * (READ_BYTES // 6) + b"\n",
}


@pytest.mark.parametrize("what", WORST)
def test_the_worst_takes_bounded_time(what):
    """The most opcodes, values and digits that fit into the part that is read."""
    started = time.process_time()
    numbers_at_top(WORST[what][:READ_BYTES], WorkBudget())
    number_at_end(b"X\x04\0\0\0step" + WORST[what][:READ_BYTES], "step", WorkBudget())
    assert time.process_time() - started < 1.0


@pytest.mark.seconds  # it measures them, which a tracer of lines would lengthen
@pytest.mark.parametrize("what", ["marks", "numbers", "notes", "copies", "items", "tuples"])
def test_the_worst_of_a_large_pickle_takes_bounded_time(what):
    """More is read if neither the beginning nor the end holds a step."""
    head, unit = WORST[what][:2], WORST[what][2:8]
    started = time.process_time()
    numbers_at_top((head + unit * (1 << 20))[: 1 << 20], WorkBudget())
    assert time.process_time() - started < 3.0
