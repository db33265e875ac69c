"""Decide which ranks save the restored weights."""

import pytest

from sidecar.protocol.saved_weights import MOST_BYTES_BY_DEFAULT, saving_ranks


@pytest.mark.parametrize(
    ("rule", "weights_bytes", "expected"),
    [
        ("auto", MOST_BYTES_BY_DEFAULT, [0, 1, 2]),
        ("auto", MOST_BYTES_BY_DEFAULT + 1, []),
        ("all", 10**12, [0, 1, 2]),
        ("first", 10**12, [0]),
        ("none", 1, []),
    ],
)
def test_large_weights_are_saved_only_if_the_user_asks_for_it(rule, weights_bytes, expected):
    """Then by all ranks, or by the first one."""
    assert list(saving_ranks(rule, 3, weights_bytes)) == expected
    assert not saving_ranks(rule, 3, weights_bytes, divided=True)
