"""Plain evaluations of checkpoints, to compare with."""

import pytest


def check(found, expected, *, correct="accuracy", loss="loss"):
    """Counts exactly; the ratio in float64; the loss as by hand in float64, and as Keras itself says."""
    assert found.examples == {"test": expected["count"]}
    assert found[correct].value == expected["correct"] / expected["count"]
    assert found[correct].hex == (expected["correct"] / expected["count"]).hex()
    assert found[loss].value == pytest.approx(expected["loss"], rel=1e-6)
    assert found[loss].value == pytest.approx(expected["keras"][loss], rel=1e-6)
