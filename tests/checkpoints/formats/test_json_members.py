"""Read JSON objects member by member, and refuse what only keeps a reader busy."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.checkpoints.formats import json_members
from sidecar.checkpoints.formats.json_members import (
    MOST_MEMBERS,
    TooManyMembersError,
    has_many_containers,
    read_members,
    string_at,
    value_at,
)
from sidecar.checkpoints.work_budget import WorkBudget

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def members_of(text):
    """Return the members of an object, and where it ends."""
    members = []

    def read(key, at):
        value, end = value_at(text, at)
        members.append((key, value))
        return end

    return members, read_members(text, 0, read, WorkBudget())


@given(st.dictionaries(st.text(), JSON, max_size=5), st.sampled_from([None, 1]))
def test_the_members_are_those_that_json_reads(content, indent):
    """Compare with the standard library, with and without white space."""
    text = json.dumps(content, indent=indent)
    members, end = members_of(text)
    assert (members, end) == (list(content.items()), len(text))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a"}', '{"a": }', '{"a": 1 "b": 2}', "{1: 2}", '{"a": 1'])
def test_what_is_not_an_object_is_an_error(text):
    """Raise ValueError, as the standard library does."""
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence is that of the standard library
        members_of(text)


def test_an_object_has_a_bounded_number_of_members(monkeypatch):
    """Stop behind the last one that any real file has."""
    monkeypatch.setattr(json_members, "MOST_MEMBERS", 3)
    assert len(members_of('{"a":1,"b":2,"c":3}')[0]) == 3
    with pytest.raises(TooManyMembersError, match="3"):
        members_of('{"a":1,"b":2,"c":3,"d":4}')


def test_values_that_are_nested_too_deep_or_too_long_are_errors():
    """The error names the place in the text at which the value begins."""
    with pytest.raises(ValueError, match=r"\b0\b"):
        value_at("[" * 100_000, 0)
    with pytest.raises(ValueError, match=r"\b0\b"):
        value_at('"' + "x" * 100_000_000, 0)


def test_a_string_begins_with_a_quotation_mark():
    """Return the text and the place behind it."""
    assert string_at('  "ab"', 2) == ("ab", 6)
    with pytest.raises(ValueError, match=r"\b1\b"):
        string_at('  "ab"', 1)


def test_many_containers_are_counted_before_they_are_built():
    """Count brackets, also those inside strings."""
    assert not has_many_containers(b"[" * (MOST_MEMBERS // 2) + b"{" * (MOST_MEMBERS // 2))
    assert has_many_containers(b"[{" * (MOST_MEMBERS // 2 + 1))
