import gc

import pytest

from simulation.mutations import MUTATIONS, broken
from simulation.scenario import make
from simulation.simulation import simulate

WITHIN = 200
"""Seeds in which a mutation must be caught. When this was written the latest was caught by the 25th."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_a_broken_rule_is_noticed(mutation):
    """By an invariant that is meant for it; the simulation would prove nothing else."""
    first = mutation.first_seed
    with broken(mutation):
        for seed in range(first, first + WITHIN):
            gc.collect()
            violation = simulate(make(seed)).violation
            if violation is not None and violation.invariant in mutation.caught_by:
                return
    pytest.fail(f"{mutation.name}: no seed from {first} to {first + WITHIN - 1} violated {mutation.caught_by}")


def test_there_are_enough_of_them():
    """And each has a name of its own."""
    assert len({each.name for each in MUTATIONS}) >= 10
