"""Break each rule, and have the simulator notice."""

import gc

import pytest

from simulation.mutation import broken, scenarios
from simulation.mutations import MUTATIONS
from simulation.mutations_of_promises import AFTER
from simulation.simulation import simulate

WITHIN = 200
"""Scenarios in which a mutation must be caught; when this was written the latest was by the 70th."""


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", [*MUTATIONS, *AFTER], ids=lambda each: each.name)
def test_a_broken_rule_is_noticed(mutation):
    """By an invariant that is meant for it; the simulation would prove nothing else."""
    assert not mutation.missing
    with broken(mutation):
        for scenario in scenarios(mutation, WITHIN):
            gc.collect()
            violation = simulate(scenario).violation
            if violation is not None and violation.invariant in mutation.caught_by:
                return
    pytest.fail(f"{mutation.name}: none of {WITHIN} scenarios violated {mutation.caught_by}")


def test_there_are_enough_of_them():
    """And each has a name of its own."""
    assert len({each.name for each in (*MUTATIONS, *AFTER)}) == len(MUTATIONS) + len(AFTER) >= 50


def test_what_they_replace_is_there():
    """A mutation of a name that is gone would change nothing."""
    assert [mutation.missing for mutation in (*MUTATIONS, *AFTER) if mutation.missing] == []
