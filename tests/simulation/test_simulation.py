"""Simulate runs of several nodes with faults."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulation import by_hand, many
from simulation.generations import draw, make, name_of, names_in
from simulation.invariants import INVARIANTS
from simulation.mutation import broken, scenarios
from simulation.mutations import MUTATIONS
from simulation.scenario import KINDS
from simulation.shrink import shrink
from simulation.simulation import simulate

SCHEDULES = [*range(1, 100), 233, 292]  # the last two: a checkpoint fails for good, a plan passes its deadline
MORE_SCHEDULES = range(1, 2001)
IN_A_BUCKET = [f"3:{seed}" for seed in range(1, 21)]
FIRST_GENERATION = ["fb2f12e0918c79a8", "e21f06262a8365e8", "5b0216dfcb93c387", "d5068c121a82f570"]
TESTS = Path(__file__).parents[1]


@pytest.fixture(
    scope="module",
    params=[SCHEDULES, pytest.param(MORE_SCHEDULES, marks=pytest.mark.nightly)],
    ids=lambda seeds: f"{len(seeds)} schedules",
)
def seeds(request):
    """Seeds that do not change: a test that failed fails again."""
    return request.param


@pytest.fixture(scope="module")
def total(seeds):
    """Return what the schedules of these seeds came to, on all cores."""
    return many.run(seeds)


@pytest.mark.timeout(3600)
def test_no_schedule_violates_an_invariant(total, seeds):
    """A violation says how to see its history: `make simulate SEEDS=…`."""
    assert [f"make simulate SEEDS={seed}: {found}" for seed, found in total.violations] == []
    assert total.schedules == len(seeds)


def test_no_schedule_violates_one_where_the_state_is_in_a_bucket():
    """The store answers with conflicts, throttles, loses replies, and lists in pages that do not fit together."""
    found = many.run(IN_A_BUCKET)
    assert [f"make simulate SEEDS={seed}: {violation}" for seed, violation in found.violations] == []
    assert (found.schedules, found.outcomes["succeeded"] > len(IN_A_BUCKET)) == (len(IN_A_BUCKET), True)


def test_every_fault_came_and_every_invariant_was_looked_at(total, seeds):
    """Else their absence would go unnoticed."""
    assert [kind for kind in KINDS if total.counts[kind] < max(1, len(seeds) // 200)] == []
    assert [name for name in INVARIANTS if not total.checked[name]] == []
    assert total.outcomes["succeeded"] > len(seeds)
    assert len(total.outcomes) > 10


@pytest.mark.parametrize(
    "variation", [*range(3), *(pytest.param(each, marks=pytest.mark.nightly) for each in range(3, 40))]
)
def test_a_record_that_is_created_late_decides_nothing(variation):
    """The record that decided is in a segment by then."""
    scenario = replace(by_hand.record_is_created_late(), variation=variation)
    report = simulate(scenario)
    assert report.violation is None
    assert report.counts["late creations"] > 0
    assert report.counts["segments"] > 5


@pytest.mark.parametrize(
    "seed", [*range(1, 13), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(13, 200))]
)
@pytest.mark.drawn(4)
def test_the_best_checkpoints_are_exported(seed):
    """No seed draws the setting, so that old seeds still draw what they drew."""
    report = simulate(by_hand.exporting(draw(seed)))
    assert report.violation is None


@pytest.mark.parametrize(
    "seed", [*range(1, 7), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(7, 200))]
)
def test_the_best_are_found_anew_for_other_data(seed):
    """By all nodes, whenever they read of the change; the best one of before stays exported."""
    report = simulate(by_hand.exporting(draw(seed), 1 + int(seed) % 2, data_last=3))
    assert report.violation is None


@pytest.mark.takes_turns(3)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seeds_with_it", [range(1, 25), pytest.param(range(25, 400), marks=pytest.mark.nightly)])
def test_forged_records_of_the_journal_are_set_aside(seeds_with_it):
    """By all nodes alike: the number is used, or the plan has failed, and all else goes on. No seed draws them."""
    reports = [simulate(by_hand.forging(make(seed))) for seed in seeds_with_it]
    assert [(report.scenario.seed, report.violation) for report in reports if report.violation is not None] == []
    assert sum(report.counts["forged records"] for report in reports) > len(reports)
    assert sum(report.outcomes["void"] for report in reports) > len(reports) / 4


def test_a_third_of_all_schedules_have_one_or_two_nodes(total, seeds):
    """As most runs of users have; and some have many."""
    few = total.nodes[1] + total.nodes[2]
    assert few > len(seeds) / 4
    assert sum(number for nodes, number in total.nodes.items() if nodes > 7) >= len(seeds) / 400


def test_the_first_generation_still_draws_what_it_drew():
    """Its seeds found bugs; what stands here was written when it was frozen."""
    assert [drawn(make(seed, 1)) for seed in (1, 49144, 29208, 6174)] == FIRST_GENERATION


def test_seeds_are_written_as_people_do():
    """Draw one of the newest generation, or of another one."""
    assert names_in("1-3,1:7,9") == ["1", "2", "3", "1:7", "9"]
    assert draw("1:7") == make(7, 1)
    assert name_of(make(7, 1)) == "1:7"
    assert draw("9") == make(9)


def test_after_nearly_all_schedules_all_had_to_be_settled(total, seeds):
    """Where too few workers are left nothing is asked for: that must be rare."""
    assert total.counts["liveness not asked for"] < len(seeds) / 20


def drawn(scenario):
    """A digest of what was drawn; fields that came later do not count."""
    told = [(each.kind, each.at, each.node, each.length, each.value, each.aimed) for each in scenario.faults]
    told += [(each.at, each.name, each.step, each.content) for each in scenario.saves]
    told += [(each.name, each.role, each.replicas, each.starts_at, each.boot_offset) for each in scenario.nodes]
    told += [(each.task, each.version, each.settings.lease, each.settings.queue) for each in scenario.nodes]
    told += [scenario.keep, scenario.latency, scenario.events, scenario.done_at, scenario.sync_every, scenario.links]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def digests(seeds):
    return [simulate(draw(seed)).digest for seed in seeds]


def test_a_seed_decides_everything():
    """Steps, their times and every byte on the disk are the same in a process that hashes strings differently."""
    seeds = ["1", "2", "1:1"]
    code = f"from simulation.test_simulation import digests; print(*digests({seeds}), hash('a string'))"
    environ = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": f"{TESTS.parent}:{TESTS}:{TESTS}/support"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    *there, of_a_string = done.stdout.split()
    assert int(of_a_string) != hash("a string")
    assert there == [str(digest) for digest in digests(seeds)]


def test_a_history_does_not_change_what_happens():
    """A schedule that is replayed with a history takes the same course as without one."""
    for seed in (1, 2):
        told = simulate(make(seed), history=True)
        assert told.history
        assert simulate(make(seed)).digest == told.digest


@pytest.mark.nightly
def test_a_violation_is_shrunk_to_the_faults_that_it_takes():
    """The command that is printed replays the same violation."""
    mutation = next(each for each in MUTATIONS if each.name == "a namesake goes unnoticed")
    with broken(mutation):
        scenario = next(each for each in scenarios(mutation, 200) if simulate(each).violation)
        parts, report = shrink(scenario, "one daemon per name")
        again = simulate(parts.of(scenario)).violation
    assert [fault.kind for fault in report.scenario.faults] == ["second_daemon"]
    assert again == report.violation
    assert f"FAULTS={report.scenario.faults[0].number}" in parts.command(scenario)
    assert "VIOLATION" in report.history[-1]
