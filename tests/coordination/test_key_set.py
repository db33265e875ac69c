"""A set of keys says what a set of tuples says, in less memory."""

import string

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
    texts = [f"{digest}/{name}" for name, digest in map(unpack, found.in_order())]
    assert texts == sorted(f"{digest}/{name}" for name, digest in found)


@given(st.sets(KEYS), st.sets(st.text()))
def test_checkpoints_are_found_by_their_folders(keys, others):
    """As in the directory of pins, where other folders may lie, too."""
    wanted = set(list(keys)[::2])
    folders = {folder_name(key) for key in wanted} | others
    found = set(KeySet(keys).in_folders(folders))
    assert found == {key for key in keys if folder_name(key) in folders} >= wanted
