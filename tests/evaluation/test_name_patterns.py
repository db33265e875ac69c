"""Names of values in a checkpoint, and the patterns by which a task leaves some of them out."""

import pytest

from sidecar.evaluation.name_patterns import matches, unused


@pytest.mark.parametrize(
    ("name", "pattern", "does"),
    [
        ("body.0.weight", "body.", True),
        ("body.0.weight", "ody.", False),
        ("body.0.weight", "body.0.weight", True),
        ("head.body.0.weight", "*.body.*", True),
        ("body.0.weight", "*.body.*", False),
        ("body.0.lora_A", "*.lora_?", True),
        ("Body.0", "body*", False),
        ("body[0]", "body[[]0]", True),
    ],
)
def test_prefix_or_pattern_of_the_whole_name(name, pattern, does):
    """A pattern without wildcards is the beginning of a name; one with wildcards describes all of it."""
    assert matches(name, [pattern]) is does
    assert matches(name, ["other", pattern]) is does


def test_patterns_that_describe_nothing():
    """A misspelt pattern is found."""
    assert unused(["body.", "boby.", "*.bias"], ["body.0.weight", "head.bias"]) == ["boby."]
    assert unused([], ["body.0.weight"]) == []
