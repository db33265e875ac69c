"""The first way to draw a scenario from a seed. It is frozen: seeds that once found a bug still draw what found it.

The second generation draws some of it in the same way.
"""

from dataclasses import replace
from random import Random
from typing import Final

from simulation.scenario import KINDS, Fault, NodeSettings, NodeSpec, Save, Scenario

_KINDS: Final = KINDS[: KINDS.index("requeue") + 1]

WEIGHTS: Final = {
    "state_deleted": 0.25,
    "becomes_chief": 0.4,
    "machine_gone": 0.5,
    "all_replaced": 0.5,
    "second_daemon": 0.7,
    "stop_before_create": 2.0,
    "stale_reads": 1.5,
}


def make(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(f"{seed}/scenario")
    count = random.choice((3, 3, 3, 3, 4, 4, 5, 6, 7))
    settings = replace(
        draw_settings(random, count, usual=3), most_settled=Random(f"{seed}/settled").choice((2000, 2000, 1))
    )
    chief = random.randrange(count) if random.random() < 0.4 else None
    standby = random.random() < 0.6
    nodes = [draw_node(random, number, settings, chief, standby=standby) for number in range(count)]
    if random.random() < 0.35:
        nodes = [_differing(random, each) for each in nodes]
    saves = tuple(_saves(random))
    faults = tuple(_faults(random, count, saves[-1].at))
    # With every_steps the last one is not settled before the run ends.
    ends = settings.every_steps is not None or random.random() < 0.2
    done_at = saves[-1].at + random.choice((0.01, random.uniform(0.0, 20.0))) if ends else None
    if done_at is None:
        nodes = [replace(each, settings=replace(each.settings, **_end(seed, saves))) for each in nodes]
    return Scenario(
        seed,
        tuple(nodes),
        saves,
        random.choice((None, 1, 2, 2, 3)),
        faults,
        latency=random.choice((0.004, 0.02, 0.02, 0.1)),
        events=random.random() < 0.4,
        done_at=done_at,
        sync_every=random.uniform(3.0, 15.0),
        links=random.random() < 0.7,
    )


def draw_settings(random: Random, count: int, *, usual: int) -> NodeSettings:
    """Return the settings of all nodes. `usual`: how many times more often a node has the usual ones than others."""
    beat = random.uniform(1.0, 2.2)
    return NodeSettings(
        beat=beat,
        lease=beat * random.uniform(3.2, 5.0),
        sweep=random.uniform(1.0, 3.0),
        visibility=random.uniform(4.0, 12.0),
        settle=random.uniform(0.2, 2.0),
        patience=random.uniform(1.0, 5.0),
        plan_cap=random.uniform(40.0, 80.0),
        max_attempts=random.choice((2, 3)),
        max_losses=random.choice((5, 8, 10)),
        min_workers=random.choice((1, 1, 1, 2)) if count > 3 else 1,
        queue=random.choice((*["every"] * usual, "latest")),
        pin_max=random.choice((*[None] * usual, 2)),
        every_steps=random.choice((*[None] * (usual + 1), 200, 250)),
        start_new=random.random() < 0.1,
    )


def _end(seed: int, saves: tuple[Save, ...]) -> dict:
    """How the run ends, if it does, without a marker of the trainer's."""
    random = Random(f"{seed}/end")
    if random.random() < 0.1:
        return {"stop_idle": random.uniform(20.0, 40.0)}  # more than there is between two saves
    ascends = all(each.step < saves[-1].step for each in saves[:-1])
    return {"stop_after_step": saves[-1].step} if ascends and random.random() < 0.2 else {}


def draw_node(random: Random, number: int, settings: NodeSettings, chief: int | None, *, standby: bool) -> NodeSpec:
    """Return the node of that number."""
    return NodeSpec(
        key=f"n{number}",
        name=f"worker-{number}",
        role="chief" if number == chief else "worker",
        replicas=random.choice((1, 1, 2)),
        standby=standby,
        starts_at=random.choice((0.0, 0.0, random.uniform(0.0, 15.0))),
        boot_offset=random.uniform(0.0, 1e5),
        wall_offset=random.uniform(-30.0, 30.0),
        settings=settings,
        chief_has_workers=random.random() < 0.5,
    )


def _differing(random: Random, node: NodeSpec) -> NodeSpec:
    """A node that somebody configured in another way."""
    how, settings = random.random(), node.settings
    if how < 0.2:
        return replace(node, task="task-2")
    if how < 0.3:
        return replace(node, version="1.1", evaluation_code="code-1.1")
    if how < 0.4:
        return replace(node, profile="arm", shows_profile=False)
    if how < 0.6:
        lease = settings.lease * random.uniform(0.7, 1.5)
        settings = replace(settings, lease=lease, patience=random.uniform(0.5, 5.0))
    elif how < 0.7:
        settings = replace(settings, max_attempts=1, max_losses=3, queue="latest")
    elif how < 0.8:
        settings = replace(settings, min_workers=2)
    return replace(node, settings=settings)


def _saves(random: Random):
    at, step, names = random.uniform(0.0, 8.0), 0, []
    for number in range(random.choice((1, 2, 2, 3, 3, 4))):
        step += 100
        name, step = draw_name(random, step, names)
        yield Save(at, name, step, f"{name} as saved number {number}")
        at += random.choice((0.3, random.uniform(2.0, 10.0), random.uniform(2.0, 10.0)))


def draw_name(random: Random, step: int, names: list[str]) -> tuple[str, int]:
    """Return name and step of a save, and note the name in `names`.

    Now and then the trainer was set back, and saves other content under a known name.
    """
    name = f"ckpt-{step}"
    if names and random.random() < 0.08:
        name = random.choice(names)
        step = int(name.split("-")[1])
    names.append(name)
    return name, step


def _faults(random: Random, count: int, last_save: float):
    weights = [WEIGHTS.get(kind, 1.0) for kind in _KINDS]
    for number in range(random.choice((0, 2, 3, 4, 5, 6, 8, 10))):
        (kind,) = random.choices(_KINDS, weights)
        length = random.choice((random.uniform(0.2, 4.0), random.uniform(4.0, 16.0)))
        at = random.uniform(2.0, max(last_save, 10.0) + 12.0)
        yield Fault(number, kind, at, random.randrange(count), length, random.random(), random.random() < 0.6)
