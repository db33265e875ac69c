"""A set of keys says what a set of tuples says, in less memory."""

import hashlib
import string
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from sidecar.coordination.key_set import KeySet, unpack
from sidecar.protocol.records import folder_name

DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64) | st.text(string.hexdigits + " ", max_size=64)
KEYS = st.tuples(st.text(st.characters(exclude_categories=())), DIGESTS)


@given(st.lists(KEYS), st.lists(KEYS), KEYS)
def test_it_is_a_set(keys, others, one):
    """Hold any names and digests, also those that no daemon writes."""
    found, expected = KeySet(keys), set(keys)
    assert (found, len(found), set(found)) == (expected, len(expected), expected)
    assert (one in found) == (one in expected)
    beside, left = found.without(KeySet(others)), expected - set(others)
    assert beside == left
    for change in ("add", "discard"):
        getattr(found, change)(one)
        getattr(expected, change)(one)
        assert (found, len(found), beside) == (expected, len(expected), left)
    for change in ("discard", "add"):
        getattr(beside, change)(one)
        getattr(left, change)(one)
        assert (found, beside, len(beside)) == (expected, left, len(left))
    found |= others
    assert found == expected | set(others)


@given(st.sets(KEYS), st.sets(KEYS))
def test_a_set_that_grows_while_it_is_read_yields_what_it_had(keys, others):
    """A snapshot is written by a thread while the daemon goes on."""
    found = KeySet(keys)
    before = found.packed()
    found |= others
    assert set(map(unpack, before)) == keys
    assert found == keys | others


@given(st.sets(KEYS), st.sets(st.text()))
def test_checkpoints_are_found_by_their_folders(keys, others):
    """As in the directory of pins, where other folders may lie, too."""
    wanted = set(list(keys)[::2])
    folders = {folder_name(key) for key in wanted} | others
    found = set(KeySet(keys).in_folders(folders))
    assert found == {key for key in keys if folder_name(key) in folders} >= wanted


def test_a_key_takes_little_memory():
    """The block of keys and the table of their places are all that grows."""
    names = [(f"ckpt-{number}", hashlib.sha256(bytes(number)).hexdigest()) for number in range(5000)]
    tracemalloc.start()
    try:
        found = KeySet(names)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found), found == set(names)) == (5000, True)
    assert taken / len(names) < 70


def test_names_that_are_too_long_stay_as_they_are():
    """A length has two bytes."""
    keys = {("n" * length, "0" * 64) for length in (65_503, 65_504)}
    assert KeySet(keys) == keys
