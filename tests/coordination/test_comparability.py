"""Compare fingerprints of data that were made in different ways."""

import pytest

from sidecar.coordination.comparability import SeenData
from sidecar.protocol.records import EvalData


@pytest.mark.parametrize(
    ("one", "other", "may_equal", "are_equal"),
    [
        (EvalData("a", 3, "batches"), EvalData("a", 3, "batches"), True, True),
        (EvalData("a", 3, "batches"), EvalData("b", 3, "batches"), False, False),
        (EvalData("a", None, "files"), EvalData("b", 3, "batches"), True, False),  # fewer files than workers
        (EvalData("a", 3, "batches", 8), EvalData("b", 3, "batches"), True, False),
        (EvalData("a", 3, "batches", 8), EvalData("a", 3, "batches", 8), True, True),
        (EvalData(None, None, "own"), EvalData(None, None, "own"), True, False),
        (None, EvalData("a", 3, "batches"), True, False),
    ],
)
def test_fingerprints_are_compared_if_they_were_made_in_the_same_way(one, other, may_equal, are_equal):
    """Otherwise the number of examples decides whether numbers can be compared, and nothing is paired."""
    for first, second in ((one, other), (other, one)):
        assert SeenData(first, 10).may_equal(SeenData(second, 10)) == may_equal
        assert SeenData(first, 10).is_known_to_equal(SeenData(second, 10)) == are_equal
        assert not SeenData(first, 10).may_equal(SeenData(second, 11))
