"""Draw the course of a metric in one line."""

import math

import pytest

from sidecar.commands.sparkline import sparkline


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], ""),
        ([1, 2, 3, 4, 5, 6, 7, 8], "▁▂▃▄▅▆▇█"),
        ([5.0, 5.0], "▅▅"),
        ([0, math.nan, 1, math.inf], "▁ █ "),
        ([math.nan], " "),
        ([-1e308, 1e308], "▁█"),
        ([5e-324, 0.0], "▅▅"),
        ([9, 9, 1, 2], "▁█"),
    ],
)
def test_each_value_is_one_character(values, shown):
    """The newest ones, from the smallest of them to the largest; one that is not finite is a gap."""
    assert sparkline(values, width=2 if values == [9, 9, 1, 2] else 8) == shown
