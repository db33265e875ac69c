"""The name of a task that a table describes."""

from sidecar.protocol.language_model import attribute_of


def test_the_name_follows_from_the_content():
    """It is the same whatever the order of keys, and is a name of Python."""
    assert attribute_of({"a": 1, "b": [2]}) == attribute_of({"b": [2], "a": 1})
    assert attribute_of({"a": 1}) != attribute_of({"a": 2})
    assert attribute_of({}).isidentifier()
