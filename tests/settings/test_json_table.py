"""Read a setting that is a table from TOML or from text."""

import pytest

from sidecar.settings.json_table import table_of


@pytest.mark.parametrize("value", [{"a": 1}, '{"a": 1}', ' {"a": 1} '])
def test_a_table_is_a_mapping_or_json(value):
    """Take what TOML has, or an object as the environment has it."""
    assert table_of(value, "write a table") == {"a": 1}


@pytest.mark.parametrize("value", [3, [], "[]", "3", "null", None])
def test_anything_else_has_a_remedy(value):
    """End with the line to write."""
    with pytest.raises(ValueError, match=r"^write a table$"):
        table_of(value, "write a table")


def test_a_text_that_is_not_json_may_have_a_remedy_of_its_own():
    """Say where the text breaks."""
    with pytest.raises(ValueError, match=r"not JSON .*: write JSON$"):
        table_of("{a: 1}", "write a table", "write JSON")
