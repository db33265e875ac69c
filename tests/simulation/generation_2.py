"""The second way to draw a scenario from a seed: more kinds of runs, of nodes that differ, and of faults.

A third of the runs have one or two nodes, as most runs of users have. `_SHAPES` says what kinds of runs there are.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Final

from simulation.generation_1 import WEIGHTS, draw_name, draw_node, draw_settings
from simulation.scenario import KINDS, Fault, NodeSettings, NodeSpec, Save, Scenario

_SHAPES: Final = {
    "usual": 60.0,  # some checkpoints, some faults
    "calm": 14.0,  # no fault at all
    "again": 8.0,  # a second training begins in the same directory
    "upgrade": 10.0,  # one node after the other gets another release
    "lonely": 4.0,  # two nodes do not reach each other's ports, for ever
    "backlog": 2.5,  # up to 50 checkpoints lie there
    "crowd": 1.0,  # 8 to 20 nodes
    "weeks": 0.25,  # a checkpoint every few hours
}

_WEIGHTS: Final = WEIGHTS | {
    "names_lost": 0.3,
    "state_restored": 0.3,
    "state_away": 0.5,
    "pin_unreadable": 1.5,
    "checkpoint_unreadable": 0.7,
    "saves_unreadable": 0.5,
    "snapshot_unreadable": 0.5,
    "leftover": 0.5,
    "links_broken": 0.0,  # only where a run is about it
    "upgrade": 0.0,  # likewise
}

_HOUR: Final = 3600.0
_FEW_READS: Final = 1.0
_HEARS: Final = 0.6


def make(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    random = Random(f"2/{seed}/scenario")
    (shape,) = random.choices(list(_SHAPES), list(_SHAPES.values()))
    count = _count(random, shape)
    settings = _settings(random, count, shape)
    nodes = _nodes(random, count, settings, shape)
    reads = Random(f"2/{seed}/reads")  # of its own, so that seeds from before it was drawn stay as they were
    if count > 2 and shape != "weeks" and reads.random() < 0.2:
        hears = reads.random() < _HEARS
        nodes = [_with(each, reads=_FEW_READS, hears=hears) for each in nodes]
    saves = tuple(_saves(random, shape))
    upgraded = _upgraded(random, nodes) if shape == "upgrade" else ()
    # With every_steps the last one is not settled before the run ends.
    steps = any(each.settings.every_steps is not None for each in (*nodes, *upgraded))
    ends = steps or (shape != "calm" and random.random() < 0.15)
    done_at = saves[-1].at + random.choice((0.01, random.uniform(0.0, 20.0))) if ends else None
    if shape != "calm" and not ends:
        end = _end(random, saves)
        nodes, upgraded = ([_with(each, **end) for each in some] for some in (nodes, upgraded))
    if shape == "upgrade":
        saves = tuple(replace(each, schema=random.choice((1, 1, upgraded[0].schema))) for each in saves)
    return Scenario(
        seed,
        tuple(nodes),
        saves,
        _keep(random, shape),
        tuple(_numbered(_faults(random, count, saves[-1].at, shape))),
        latency=random.choice((0.004, 0.02, 0.02, 0.1)),
        events=shape == "weeks" or random.random() < 0.4,
        done_at=done_at,
        sync_every=random.uniform(3.0, 15.0),
        links=random.random() < 0.7,
        generation=2,
        shape=shape,
        upgraded=tuple(upgraded),
        idle_seconds=settings.beat if shape == "weeks" else 1.0,
    )


def _count(random: Random, shape: str) -> int:
    if shape == "crowd":
        return random.randint(8, 20)
    if shape == "weeks":
        return random.choice((1, 2, 2, 3))
    if shape == "lonely":
        return random.choice((2, 2, 3))
    return random.choice((1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7))


def _keep(random: Random, shape: str) -> int | None:
    if shape == "backlog":
        return random.choice((None, None, 5))
    return random.choice((None, 1, 2, 2, 3))


def _settings(random: Random, count: int, shape: str) -> NodeSettings:
    settings = replace(draw_settings(random, count, usual=4), most_settled=random.choice((2000, 2000, 1)))
    if shape in ("calm", "lonely", "backlog"):
        settings = replace(settings, queue="every", every_steps=None)
    if shape in ("lonely", "backlog"):
        settings = replace(settings, pin_max=None, start_new=False)
    if shape == "lonely":
        settings = replace(settings, join=4.0, max_losses=8, every_steps=None)
    if shape == "weeks":
        rare = {"beat": 300.0, "lease": 1200.0, "sweep": 900.0, "visibility": 600.0, "storage": 300.0}
        bounds = {"join": 900.0, "restore": 900.0, "plan_cap": 7200.0, "patience": 10.0}
        return replace(settings, **rare, **bounds, every_steps=None)
    return settings


# -- nodes ------------------------------------------------------------------------------------------------------------


def _nodes(random: Random, count: int, settings: NodeSettings, shape: str) -> list[NodeSpec]:
    chief = random.randrange(count) if count > 1 and shape != "lonely" and random.random() < 0.35 else None
    standby = random.random() < 0.6
    nodes = [draw_node(random, number, settings, chief, standby=standby) for number in range(count)]
    if shape in ("lonely", "backlog", "weeks", "upgrade"):
        return nodes
    if random.random() < 0.35:
        nodes = [_differing(random, each) if random.random() < 0.6 else each for each in nodes]
    if random.random() < 0.2:
        odd = random.randrange(count)
        nodes[odd] = replace(nodes[odd], profile="arm", shows_profile=odd % 2 == 0)
    if shape != "calm" and random.random() < 0.15:
        nodes = [replace(each, settings=replace(each.settings, max_attempts=random.randint(1, 4))) for each in nodes]
    return nodes


def _differing(random: Random, node: NodeSpec) -> NodeSpec:
    """Return the node as somebody else configured it: in one way, or in two at once."""
    for way in random.sample(_WAYS, random.choice((1, 1, 2))):
        node = way(random, node)
    return node


def _other_task(_: Random, node: NodeSpec) -> NodeSpec:
    return replace(node, task="task-2")


def _other_version(_: Random, node: NodeSpec) -> NodeSpec:
    return replace(node, version="1.1", evaluation_code="code-1.1")


def _other_profile(_: Random, node: NodeSpec) -> NodeSpec:
    return replace(node, profile="arm")


def _other_queue(random: Random, node: NodeSpec) -> NodeSpec:
    other = {"queue": "latest"} if node.settings.queue == "every" else {"queue": "every"}
    return _with(node, **random.choice((other, {"every_steps": 200})))


def _other_times(random: Random, node: NodeSpec) -> NodeSpec:
    lease = node.settings.lease * random.uniform(0.7, 1.5)
    return _with(node, lease=lease, patience=random.uniform(0.5, 5.0))


def _other_limits(random: Random, node: NodeSpec) -> NodeSpec:
    return _with(node, **random.choice(({"max_attempts": 1, "max_losses": 3}, {"min_workers": 2}, {"pin_max": 2})))


_WAYS: Final = (_other_task, _other_version, _other_profile, _other_queue, _other_times, _other_limits)


def _with(node: NodeSpec, **settings) -> NodeSpec:
    return replace(node, settings=replace(node.settings, **settings))


def _upgraded(random: Random, nodes: list[NodeSpec]) -> tuple[NodeSpec, ...]:
    """Return what the nodes become: another release, which may also bring another task, settings or records."""
    schema, task = random.choice((1, 2)), random.choice(("task-1", "task-2"))
    settings = random.choice(
        ({}, {}, {"queue": "latest"}, {"every_steps": 200}, {"queue": "every", "every_steps": None})
    )
    release = {"version": "1.1", "evaluation_code": "code-1.1", "schema": schema}
    return tuple(_with(replace(each, task=task, **release), **settings) for each in nodes)


# -- what the trainer does --------------------------------------------------------------------------------------------


def _saves(random: Random, shape: str) -> Iterator[Save]:
    at, step, names = random.uniform(0.0, 8.0), 0, []
    number = {"backlog": random.randint(15, 50), "weeks": random.randint(5, 10), "lonely": random.randint(6, 20)}
    second = random.choice((1, 2, 3)) if shape == "again" else None
    for place in range(number.get(shape, random.choice((1, 2, 2, 3, 3, 4)) + (second or 0))):
        step += 100
        if place == second:
            step = 100
        name, step = draw_name(random, step, names)
        begins = place == second and random.random() < 0.7
        yield Save(at, name, step, f"{name} as saved number {place}", begins=begins)
        if shape == "backlog":
            at += random.choice((0.05, 0.3, 2.0))
        elif shape == "weeks":
            at += random.uniform(2 * _HOUR, 30 * _HOUR)
        else:
            at += random.choice((0.3, random.uniform(2.0, 10.0), random.uniform(2.0, 10.0)))
            at += random.uniform(0.0, 30.0) if second is not None and place + 1 == second else 0.0


def _end(random: Random, saves: tuple[Save, ...]) -> dict:
    """Return how the run ends, if it does, without a marker of the trainer's."""
    if random.random() < 0.08:
        gap = max((after.at - before.at for before, after in pairwise(saves)), default=0.0)
        return {"stop_idle": gap + random.uniform(15.0, 30.0)}
    last = saves[-1]
    ascends = all(each.step < last.step for each in saves[:-1])
    second = next((place for place, each in enumerate(saves) if each.begins), None)
    if second is not None:  # and the second training ends where the first one did, or later
        ascends = all(each.step < last.step for each in saves[second:-1])
    return {"stop_after_step": last.step} if ascends and random.random() < 0.25 else {}


# -- faults -----------------------------------------------------------------------------------------------------------


def _faults(random: Random, count: int, last_save: float, shape: str) -> Iterator[Fault]:
    if shape == "calm":
        return
    if shape == "lonely":
        yield Fault(0, "links_broken", 0.0, 0, 1.0, random.random(), aimed=False)
        return
    if shape == "upgrade":
        at, order = random.uniform(5.0, 20.0), list(range(count))
        for node in random.choice((order, order[::-1])):
            yield Fault(0, "upgrade", at, node, random.uniform(0.5, 4.0), random.random(), aimed=False)
            at += random.uniform(2.0, 15.0)
    weights = [_WEIGHTS.get(kind, 1.0) for kind in KINDS]
    hours = _HOUR if shape == "weeks" else 1.0
    for _ in range(random.choice((0, 1, 2, 3) if shape in ("upgrade", "backlog") else (0, 2, 3, 4, 5, 6, 8, 10))):
        (kind,) = random.choices(KINDS, weights)
        length = random.choice((random.uniform(0.2, 4.0), random.uniform(4.0, 16.0))) * hours
        if kind == "reads_go_back":
            length += 30.0
        at = random.uniform(2.0, max(last_save, 10.0) + 12.0)
        yield Fault(0, kind, at, random.randrange(count), length, random.random(), random.random() < 0.6)


def _numbered(faults: Iterator[Fault]) -> Iterator[Fault]:
    for number, fault in enumerate(sorted(faults, key=_by_time)):
        yield replace(fault, number=number)


def _by_time(fault: Fault) -> float:
    return fault.at
