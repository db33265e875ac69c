"""Define the input of the policy: the knowledge of one daemon. Times are seconds of the daemon's own clock."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.records import Checkpoint, Key, Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesView:
    """Describe the nodes by their heartbeats."""

    ready: Sequence[Heartbeat] = ()  # workers that are alive and ready, this node's among them, in natural order
    liveness_unknown: bool = False  # another worker may be alive, although its heartbeat cannot be read now
    chiefs: AbstractSet[str] = frozenset()  # live nodes whose heartbeat says chief
    lost_members: Mapping[str, str] = field(default_factory=dict)  # nodes of the open plan that are gone, and why
    tasks: AbstractSet[str | None] = frozenset()  # digests of the tasks that live nodes run
    may_propose: bool = False  # this node knows which others are alive, and they can see its heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsView:
    """Describe the checkpoints by this node's scans."""

    complete: Sequence[Checkpoint] = ()  # in order of discovery
    given_up: Sequence[Settlement] = ()  # corrupt, vanished, or skipped and gone, as this node saw it
    returned: Sequence[Checkpoint] = ()  # complete, although the journal says that they vanished
    unreadable: AbstractSet[str] = frozenset()  # names, as `Checkpoint.folder`, that only other nodes can read
    before_start: AbstractSet[Key] = frozenset()  # saved before the start, with start=new
    backlog_cutoff_pending: bool = False  # start=new, and the checkpoints from before the start are not settled yet
    without_room: AbstractSet[Key] = frozenset()  # complete, but this node lacks the room to pin them
    unpinnable: AbstractSet[str] = frozenset()  # names, as `Checkpoint.folder`, that this node failed to pin
    training_done: bool = False  # the trainer's marker says that it saved its last checkpoint
    last_step: int = -1  # the highest step that training has reached
    incomplete_since: float | None = None  # since when the same entries are not complete checkpoints; None: no entries
    scanned_at: float = float("inf")  # when the newest scan was requested


@dataclass(frozen=True, slots=True, kw_only=True)
class TimersView:
    """Hold the times since when the conditions hold that the policy waits for, as this node saw them."""

    plan_opened_at: float = 0.0  # when the open plan was first seen
    all_ranks_waiting_since: float | None = None  # since when every rank of the open plan waits for the others
    work_waiting_since: float | None = None  # since when there was work and no plan
    first_standby_at: float = 0.0  # when the first worker appeared that could be listed
    newest_standby_at: float = 0.0  # when the set of workers that could be listed last grew
    failed_at: Mapping[Key, float] = field(default_factory=dict)  # when a checkpoint's last failure was read
    last_activity_at: float = 0.0  # when the journal or the directory last changed

    @property
    def turns_begin_at(self) -> float:
        """Return the time from which the nodes take turns to propose."""
        return self.last_activity_at if self.work_waiting_since is None else self.work_waiting_since


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Hold everything that one daemon knows when it decides."""

    node: str
    incarnation: str
    task: str | None  # digest of this node's task
    history: JournalState
    nodes: NodesView = field(default_factory=NodesView)
    checkpoints: CheckpointsView = field(default_factory=CheckpointsView)
    timers: TimersView = field(default_factory=TimersView)
    draining: bool = False
    caught_up: bool = False  # journal and directory were each read to the end once
