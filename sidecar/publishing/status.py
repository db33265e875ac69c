"""Define the status of a daemon: one frozen snapshot for /metrics, /readyz and the status page."""

from dataclasses import dataclass, field

from sidecar.policy.node_identity import Identity
from sidecar.protocol.records import FinishedSet
from sidecar.protocol.states import NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """Describe one worker process of this node."""

    worker: str
    pid: int
    state: str  # importing, standby, joining, idle, or the phase of its evaluation
    batches: int = 0
    total_batches: int | None = None
    waits: bool = False  # other programs have the processors for most of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """Describe the checkpoint discovered last. `written_at` is the time of its last file, in seconds since 1970."""

    step: int | None
    written_at: float
    checkpoint: str = ""
    digest: str = ""
    step_source: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointsStatus:
    """Describe the checkpoints that this node has seen."""

    pending: int = 0  # complete checkpoints that still need an evaluation
    oldest_pending: float | None = None  # when the oldest of them was written (seconds since 1970)
    newest: Newest | None = None
    unseen: int = 0  # checkpoints that were deleted before any node saw them, since this daemon started


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberProgress:
    """Describe the progress of one rank in the open plan, on any node. None: its node has not reported it yet."""

    rank: int
    node: str
    worker: str
    phase: str | None = None
    batches: int | None = None
    total: int | None = None
    waits: bool | None = None  # as of `WorkerProgress`


@dataclass(frozen=True, slots=True)
class EvaluationStatus:
    """Describe the open plan, and the groups of worker processes that evaluate."""

    plan: int | None = None  # the open plan, if any
    progress: tuple[MemberProgress, ...] = ()  # of its ranks, as the newest heartbeats say
    group_size: int = 0  # worker processes of the newest evaluation
    groups_formed: int = 0  # since this daemon started
    finished: tuple[FinishedSet, ...] = ()  # sets of the open plan that are finished while others are evaluated


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """Describe one live node by its newest heartbeat."""

    node: str
    role: str
    role_source: str
    state: str
    version: str
    active: int = 0  # worker processes that are in a group
    standby: int = 0  # worker processes that are ready to join one
    page_url: str | None = None


@dataclass(frozen=True, slots=True)
class NodesStatus:
    """Describe the nodes that are alive."""

    alive: tuple[NodeSummary, ...] = ()  # in natural order of names, this node among them
    members: dict[str, int] = field(default_factory=dict)  # the number of nodes by state
    left_out: dict[str, str] = field(default_factory=dict)  # by node that is left out of some evaluations: why
    left_out_reasons: dict[str, int] = field(default_factory=dict)  # the number of such nodes by `eligibility.Reason`


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Describe how much of shared storage pins, retained saves and exported checkpoints take."""

    pins_bytes: int = 0
    saves_bytes: int = 0
    exports_bytes: int = 0
    failing_exports: int = 0  # entries of the folder of exports with a problem


@dataclass(frozen=True, slots=True)
class UnreadableEntries:
    """Describe the entries of shared storage that this node cannot read now."""

    sentences: tuple[str, ...] = ()  # about the first of them
    count: int = 0  # of all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """Describe how far a sink is behind the journal, on the node that delivers to it."""

    name: str
    pending: int = 0  # events, such as evaluations, that it does not have yet
    oldest_pending: float | None = None  # when the oldest of them was completed (seconds since 1970)
    refused: int = 0  # events that it will never have, since this daemon started
    failing: str | None = None  # why the newest delivery failed; None: it did not
    stop_signalled: bool | None = None  # whether training was told to stop; None: this sink does not decide that


@dataclass(frozen=True, slots=True)
class Ended:
    """Describe the end of the run, as the settings define it."""

    reason: str
    failed: int  # checkpoints that failed for good


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Describe the present state of this node. The content of the journal is in `JournalState`."""

    identity: Identity
    state: NodeState
    publisher: bool = False
    unready: str | None = "starting"  # why the node is not ready; None: it is ready
    hint: str | None = None  # a likely mistake that somebody should check, though nothing failed
    journal_read: bool = False  # the journal was read to its end once; before that, totals are incomplete
    checkpoints: CheckpointsStatus = field(default_factory=CheckpointsStatus)
    evaluation: EvaluationStatus = field(default_factory=EvaluationStatus)
    nodes: NodesStatus = field(default_factory=NodesStatus)
    workers: tuple[WorkerStatus, ...] = ()
    disk: DiskUsage = field(default_factory=DiskUsage)
    unreadable: UnreadableEntries = field(default_factory=UnreadableEntries)
    journal_problems: int = 0  # snapshots and segments that cannot be written
    ended: Ended | None = None  # None: the run goes on, or this daemon ends for another reason
