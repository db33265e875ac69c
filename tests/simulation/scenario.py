"""Declare schedules: nodes and their settings, what the trainer does, and which faults come when and where."""

from dataclasses import dataclass, replace

from rules import NAMES

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
    "pin_unreadable",
    "checkpoint_unreadable",
    "heartbeat_unreadable",
    "snapshot_unreadable",
    "saves_unreadable",
    "disk_full",
    "reads_fail",
    "pins_late",
    "listing_misses",
    "short_reads",
    "run_missing",
    "file_hangs",
    "leftover",
    "state_away",
    "names_lost",
    "state_restored",
    "reads_go_back",
    "moved_away",
    "links_broken",
    "upgrade",
)
"""Faults, each with a time, a node and a length."""

LINGERS = 10.0  # seconds for which a fault that is set to happen between two operations waits for its moment
AIMS_FOR = 8.0  # seconds for which one that is aimed at a plan waits for one
AFTER_PLAN = 5.0  # and within so many seconds after it comes

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
    collective: float = 6.0
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
    export_best: int = 0
    reads: float = 12.0  # heartbeats a second: with few, a node reads the others in turn, as among hundreds
    hears: bool = True  # whether the names of beats spare reads; without that, files are read as among older releases
    data_last: int = 0  # plans after which the data of the eval set are replaced; 0: never

    def rules(self) -> dict:
        """Return the settings of the policy, by their names in the groups of `Rules`."""
        rules = {name: getattr(self, name) for name in NAMES if hasattr(self, name)}
        return rules | {
            "backoff_first_seconds": self.backoff_first,
            "backoff_last_seconds": self.backoff_last,
            "group_settle_seconds": self.settle,
            "quiet_seconds": self.settle,
            "corrupt_after_seconds": self.visibility,
            "pin_wait_seconds": self.visibility,
            "join_timeout_seconds": self.join,
            "proposal_turn_seconds": self.patience,
            "plan_cap_seconds": self.plan_cap,
            "collective_timeout_seconds": self.collective,
            "stop_idle_seconds": self.stop_idle,
        }


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
    evaluation_code: str | None = None  # digest of the code that makes numbers; None: a release that tells none
    profile: str = "x86"
    shows_profile: bool = True  # when the task is tried; else only a worker that has joined a group knows it
    chief_has_workers: bool = False
    schema: int = 1  # of the records that its release writes; it understands all up to that

    @property
    def code(self) -> str:
        """Return by what it is told whether two nodes make numbers with the same code."""
        return self.evaluation_code or self.version

    @property
    def kind(self) -> tuple[str, str, str, str]:
        """Return in what nodes of one group are alike: in what they show of their profile, too."""
        return self.code, self.task, self.profile, self.profile if self.shows_profile else "x86"


@dataclass(frozen=True, slots=True)
class Save:
    """The trainer saves a checkpoint. `content` tells two saves under one name apart.

    `begins`: a second training begins with it, whose script deletes all former checkpoints. `schema`: releases before
    that one do not know its format.
    """

    at: float
    name: str
    step: int
    content: str
    begins: bool = False
    schema: int = 1


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
    generation: int = 1  # which way of drawing it came from
    variation: int = 0  # 0: the delays that the seed draws; else others, for the same nodes, saves and faults
    shape: str = "usual"
    upgraded: tuple[NodeSpec, ...] = ()  # what the nodes become, each by a fault `upgrade`
    copies_slowly: bool = False  # where links are refused
    idle_seconds: float = 1.0  # between two turns of a loop in which nothing happens
    bucket: bool = False  # whether the state lies in an object store

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
        upgraded = tuple(self.upgraded[number] for number in there) if self.upgraded else ()
        return replace(self, nodes=kept_nodes, upgraded=upgraded, faults=tuple(kept), saves=kept_saves)
