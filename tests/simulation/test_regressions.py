"""Replay schedules that once broke a rule."""

import gc

import pytest

from simulation.mutation import broken
from simulation.regressions import REGRESSIONS
from simulation.simulation import simulate

WITHIN = 80
"""Other delays among which a bug must be found again once its mend is undone."""


@pytest.mark.parametrize(
    "delays", [1, pytest.param(None, marks=pytest.mark.nightly)], ids=["as it was drawn", "with other delays"]
)
@pytest.mark.parametrize("regression", REGRESSIONS, ids=lambda each: each.name)
@pytest.mark.drawn(20)
def test_what_once_found_a_bug_finds_none(regression, delays):
    """As it was drawn in `make test`; with other delays, too, in `make test-all`."""
    found = [(scenario.variation, simulate(scenario).violation) for scenario in regression.scenarios(delays)]
    assert [each for each in found if each[1] is not None] == []


@pytest.mark.nightly
@pytest.mark.parametrize("regression", [each for each in REGRESSIONS if each.undone], ids=lambda each: each.name)
def test_it_finds_it_again_once_the_mend_is_undone(regression):
    """Else the schedule would be kept for nothing."""
    assert not regression.undone.missing
    with broken(regression.undone):
        for scenario in regression.scenarios(WITHIN):
            gc.collect()
            violation = simulate(scenario).violation
            if violation is not None and violation.invariant in regression.undone.caught_by:
                return
    pytest.fail(f"{regression.name}: {WITHIN} delays do not violate {regression.undone.caught_by}")
