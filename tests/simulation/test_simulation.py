import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation import many
from simulation.invariants import INVARIANTS
from simulation.mutation import broken, scenarios
from simulation.mutations import MUTATIONS
from simulation.generations import make
from simulation.scenario import KINDS
from simulation.shrink import shrink
from simulation.simulation import simulate

SCHEDULES = 2000
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def total():
    """What a few thousand schedules came to, on all cores."""
    return many.run(range(1, SCHEDULES + 1))


@pytest.mark.timeout(900)
def test_no_schedule_violates_an_invariant(total):
    """A violation says how to see its history: `make simulate SEEDS=…`."""
    assert [f"make simulate SEEDS={seed}: {found}" for seed, found in total.violations] == []
    assert total.schedules == SCHEDULES


def test_every_fault_came_and_every_invariant_was_looked_at(total):
    """Else their absence would go unnoticed."""
    assert [kind for kind in KINDS if total.counts[kind] < 10] == []
    assert [name for name in INVARIANTS if not total.checked[name]] == []
    assert total.outcomes["succeeded"] > SCHEDULES
    assert len(total.outcomes) > 10


def test_after_nearly_all_schedules_all_had_to_be_settled(total):
    """Where too few workers are left nothing is asked for: that must be rare."""
    assert total.counts["liveness not asked for"] < SCHEDULES / 20


def digests(seeds, hash_seed):
    code = (
        "from simulation.generations import make; from simulation.simulation import simulate; "
        f"print([simulate(make(seed)).digest for seed in {list(seeds)}])"
    )
    environ = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout


def test_a_seed_decides_everything():
    """Steps, their times and every byte on the disk are the same in processes that hash strings differently."""
    seeds = range(1, 9)
    assert digests(seeds, "1") == digests(seeds, "2")


def test_a_history_does_not_change_what_happens():
    """What is replayed with a history is what happened without one."""
    for seed in range(1, 6):
        told = simulate(make(seed), history=True)
        assert told.history
        assert simulate(make(seed)).digest == told.digest


def test_a_violation_is_shrunk_to_the_faults_that_it_takes():
    """The command that is printed replays the same violation."""
    mutation = next(each for each in MUTATIONS if each.name == "a namesake goes unnoticed")
    with broken(mutation):
        scenario = next(each for each in scenarios(mutation, 200) if simulate(each).violation)
        parts, report = shrink(scenario, "one daemon per name")
        again = simulate(parts.of(scenario)).violation
    assert [fault.kind for fault in report.scenario.faults] == ["second_daemon"]
    assert again == report.violation
    assert f"FAULTS={report.scenario.faults[0].number}" in parts.command(scenario.seed)
    assert "VIOLATION" in report.history[-1]
