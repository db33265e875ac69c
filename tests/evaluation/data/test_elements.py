"""Split elements into inputs, labels and weights, and name what has no labels."""

import pytest

from sidecar.evaluation.data.elements import parts_of, placed, require_form_of_keras, unpack, with_labels
from sidecar.evaluation.failures import EvaluationError


@pytest.mark.parametrize(
    ("batch", "parts"),
    [
        ("x", ("x", None, None)),
        ({"x": 1}, ({"x": 1}, None, None)),
        (["x", "y"], (["x", "y"], None, None)),
        (("x",), ("x", None, None)),
        (("x", "y"), ("x", "y", None)),
        (("x", "y", "w"), ("x", "y", "w")),
        ((), None),
        (("x", "y", "w", "more"), None),
    ],
)
def test_a_tuple_has_up_to_three_parts(batch, parts):
    """Take anything else, lists among it, for inputs."""
    assert unpack(batch) == parts
    assert parts_of(batch) == (parts or (batch, None, None))


@pytest.mark.parametrize(("batch", "words"), [("x", "x alone"), ({}, "a dict"), (("a",) * 4, "a tuple of 4")])
def test_labels_that_are_missing_are_named(batch, words):
    """Say which form was found, and end with the remedy."""
    with pytest.raises(EvaluationError, match=words) as raised:
        with_labels(batch, "Give labels")
    assert str(raised.value).endswith("Give labels")
    assert with_labels(("x", "y")) == ("x", "y", None)


def test_the_step_of_keras_takes_no_other_form():
    """Refuse a tuple of four."""
    require_form_of_keras("x")
    with pytest.raises(EvaluationError, match="a tuple of 4"):
        require_form_of_keras(("a",) * 4)


def test_parts_have_places():
    """Leave out parts that are missing."""
    assert [part for _, part in placed(("x", None, "w"))] == ["x", "w"]
    assert len({place for place, _ in placed(("x", "y", "w"))}) == 3
