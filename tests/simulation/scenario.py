"""What a seed decides: nodes and their settings, what the trainer does, and which faults come when and where."""

from dataclasses import dataclass, fields, replace
from random import Random

from sidecar.policy import Rules

KINDS = (
    "daemon_crash",
    "machine_crash",
    "machine_gone",
    "all_replaced",
    "daemon_stop",
    "stop_before_create",
    "stop_after_create",
    "machine_stop",
    "cut_off",
    "storage_hangs",
    "all_storage_hangs",
    "slow",
    "stale_reads",
    "lost_replies",
    "rewind",
    "wall_step",
    "second_daemon",
    "worker_dies",
    "worker_hangs",
    "worker_fails",
    "worker_stops",
    "workers_cannot_start",
    "worker_lies",
    "checkpoint_deleted",
    "corrupt_everywhere",
    "corrupt_on_one",
    "restored_wrong_on_one",
    "sigterm",
    "state_deleted",
    "becomes_chief",
    "requeue",
)
"""Faults, each with a time, a node and a length."""

LINGERS = 10.0  # seconds for which a fault that is set to happen between two operations waits for its moment
AIMS_FOR = 8.0  # seconds for which one that is aimed at a plan waits for one
AFTER_PLAN = 5.0  # and within so many seconds after it comes

_WEIGHTS = {
    "state_deleted": 0.25,
    "becomes_chief": 0.4,
    "machine_gone": 0.5,
    "all_replaced": 0.5,
    "second_daemon": 0.7,
    "stop_before_create": 2.0,
    "stale_reads": 1.5,
}

FAILURES = ("stalled", "task_error", "nonfinite_input", "out_of_memory", "worker_died", "join", "storage", "count")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Durations in seconds, as in the settings of a daemon, but shorter."""

    beat: float = 1.0
    lease: float = 5.0
    sweep: float = 1.0
    storage: float = 5.0
    visibility: float = 10.0
    drain: float = 8.0
    settle: float = 1.0
    join: float = 10.0
    restore: float = 12.0
    first_batch: float = 10.0
    stall: float = 8.0
    stall_factor: float = 3.0
    patience: float = 3.0
    plan_cap: float = 60.0
    backoff_first: float = 0.5
    backoff_last: float = 4.0
    max_attempts: int = 3
    max_losses: int = 8
    min_workers: int = 1
    queue: str = "every"
    every_steps: int | None = None
    start_new: bool = False
    pin_max: int | None = None
    most_settled: int = 2000
    stop_after_step: int | None = None
    stop_idle: float | None = None

    def rules(self) -> dict:
        """Those that the policy asks for."""
        return {each.name: getattr(self, each.name) for each in fields(Rules) if hasattr(self, each.name)}


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node. `key` is unique even if two daemons bear one name."""

    key: str
    name: str
    role: str
    replicas: int
    standby: bool
    starts_at: float
    boot_offset: float
    wall_offset: float
    settings: NodeSettings
    task: str = "task-1"
    version: str = "1.0"
    profile: str = "x86"
    chief_has_workers: bool = False


@dataclass(frozen=True, slots=True)
class Save:
    """The trainer saves a checkpoint. `content` tells two saves under one name apart."""

    at: float
    name: str
    step: int
    content: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Something goes wrong. `value` is in [0, 1); what it means depends on the kind."""

    number: int
    kind: str
    at: float
    node: int
    length: float
    value: float
    aimed: bool  # it waits, for a while, for the next plan

    @property
    def ends_at(self) -> float:
        """The latest time at which it is over."""
        return self.at + self.length + (AIMS_FOR + AFTER_PLAN) * self.aimed + LINGERS * self.kind.endswith("_create")

    def __str__(self) -> str:
        return f"fault {self.number}: {self.kind}, node {self.node}, t={self.at:.1f}, {self.length:.1f} s"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that is decided before anything happens."""

    seed: int
    nodes: tuple[NodeSpec, ...]
    saves: tuple[Save, ...]
    keep: int | None
    faults: tuple[Fault, ...]
    latency: float  # seconds: twice the mean of half an operation
    events: bool  # file events tell of checkpoints and records at once
    done_at: float | None  # when the trainer says that it saved its last one
    sync_every: float
    links: bool  # whether storage grants them, or checkpoints are copied to be held

    @property
    def quiet_after(self) -> float:
        """When the last fault is over and the last checkpoint saved."""
        times = [each.ends_at for each in self.faults] + [each.at for each in self.saves]
        return max([*times, self.done_at or 0.0])

    def only(self, faults=None, nodes=None, saves=None) -> "Scenario":
        """The same with some of its faults, nodes and saves; numbers and specifications stay as they were."""
        kept_nodes = self.nodes if nodes is None else tuple(self.nodes[number] for number in nodes)
        names = {each.key for each in kept_nodes}
        kept = [each for each in self.faults if faults is None or each.number in faults]
        there = [self.nodes.index(each) for each in kept_nodes]
        kept = [replace(each, node=there.index(each.node)) for each in kept if each.node in there]
        kept_saves = self.saves if saves is None else tuple(self.saves[number] for number in saves)
        assert names
        return replace(self, nodes=kept_nodes, faults=tuple(kept), saves=kept_saves)


def make(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(f"{seed}/scenario")
    count = random.choice((3, 3, 3, 3, 4, 4, 5, 6, 7))
    settings = replace(_settings(random, count), most_settled=Random(f"{seed}/settled").choice((2000, 2000, 1)))
    chief = random.randrange(count) if random.random() < 0.4 else None
    standby = random.random() < 0.6
    nodes = [_node(random, number, settings, chief, standby=standby) for number in range(count)]
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


def _settings(random: Random, count: int) -> NodeSettings:
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
        queue=random.choice(("every", "every", "every", "latest")),
        pin_max=random.choice((None, None, None, 2)),
        every_steps=random.choice((None, None, None, None, 200, 250)),
        start_new=random.random() < 0.1,
    )


def _end(seed: int, saves: tuple[Save, ...]) -> dict:
    """How the run ends, if it does, without a marker of the trainer's."""
    random = Random(f"{seed}/end")
    if random.random() < 0.1:
        return {"stop_idle": random.uniform(20.0, 40.0)}  # more than there is between two saves
    ascends = all(each.step < saves[-1].step for each in saves[:-1])
    return {"stop_after_step": saves[-1].step} if ascends and random.random() < 0.2 else {}


def _node(random: Random, number: int, settings: NodeSettings, chief: int | None, *, standby: bool) -> NodeSpec:
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
        return replace(node, version="1.1")
    if how < 0.4:
        return replace(node, profile="arm")
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
        name = f"ckpt-{step}"
        if names and random.random() < 0.08:  # the trainer was set back, and saves other content under a known name
            name = random.choice(names)
            step = int(name.split("-")[1])
        names.append(name)
        yield Save(at, name, step, f"{name} as saved number {number}")
        at += random.choice((0.3, random.uniform(2.0, 10.0), random.uniform(2.0, 10.0)))


def _faults(random: Random, count: int, last_save: float):
    weights = [_WEIGHTS.get(kind, 1.0) for kind in KINDS]
    for number in range(random.choice((0, 2, 3, 4, 5, 6, 8, 10))):
        (kind,) = random.choices(KINDS, weights)
        length = random.choice((random.uniform(0.2, 4.0), random.uniform(4.0, 16.0)))
        at = random.uniform(2.0, max(last_save, 10.0) + 12.0)
        yield Fault(number, kind, at, random.randrange(count), length, random.random(), random.random() < 0.6)
