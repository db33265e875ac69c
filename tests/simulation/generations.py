"""Draw the scenario of a seed. How that is done has changed: each generation stays, so that old seeds are replayable.

A seed without a generation is of the newest. In text a seed of another one is written `1:4711`. The third one is the
second with the state in an object store.
"""

from dataclasses import replace
from typing import Final

from simulation import generation_1, generation_2
from simulation.bucket import ABSENT
from simulation.scenario import Scenario

NEWEST: Final = 2
BUCKET: Final = 3


def _in_bucket(seed: int) -> Scenario:
    scenario = generation_2.make(seed)
    faults = tuple(fault for fault in scenario.faults if fault.kind not in ABSENT)
    # A real chief makes no pin, and here nobody else could use that of one which has workers.
    nodes, upgraded = (
        tuple(replace(node, chief_has_workers=False) for node in each) for each in (scenario.nodes, scenario.upgraded)
    )
    changes = {"nodes": nodes, "upgraded": upgraded, "faults": faults}
    return replace(scenario, generation=BUCKET, bucket=True, links=False, **changes)


_MAKERS: Final = {1: generation_1.make, 2: generation_2.make, BUCKET: _in_bucket}


def make(seed: int, generation: int = NEWEST) -> Scenario:
    """Return the scenario of a seed."""
    return _MAKERS[generation](seed)


def draw(name: str | int) -> Scenario:
    """Return the scenario of a seed as people write it: `4711` is of the newest generation, `1:4711` of the first."""
    generation, _, seed = str(name).rpartition(":")
    return make(int(seed), int(generation or NEWEST))


def name_of(scenario: Scenario) -> str:
    """Return the seed of a scenario as `draw` takes it."""
    return str(scenario.seed) if scenario.generation == NEWEST else f"{scenario.generation}:{scenario.seed}"


def names_in(text: str) -> list[str]:
    """Return the seeds of a list as people write it: `1-2000`, `4711`, `1-100,4711`, `1:1-100`."""
    found: list[str] = []
    for part in text.split(","):
        generation, colon, seeds = part.rpartition(":")
        first, _, last = seeds.partition("-")
        found += [f"{generation}{colon}{seed}" for seed in range(int(first), int(last or first) + 1)]
    return found
