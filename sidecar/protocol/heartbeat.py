"""Define the heartbeat of a node: the record by which the nodes of a run know of each other.

`sidecar.protocol.codec` converts it to JSON and back.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.record_limits import HEARTBEAT, AtMost, RecordLimits
from sidecar.protocol.records import MOST_FINISHED_SETS, SCHEMA, SPARSE, FinishedSet, Inlined, Role
from sidecar.protocol.states import NodeState

SEGMENTS_KNOWN: Final = 1
"""The form of the journal's segments that this release reads and makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Hold one replica of a node: its worker in a group, and its standby worker. `host`: as of `Member`."""

    worker: str | None
    group: str | None
    address: str | None
    standby: str | None
    standby_address: str | None
    host: Annotated[str | None, SPARSE] = None


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """Hold the progress of a worker: `batches` of `total` are done, which is `None` while that number is unknown.

    `waits`: whether other programs have the processors for most of the time; None: they do not. `finished`: eval sets
    of which it reports the numbers while others are evaluated, for people.
    """

    worker: str
    phase: str
    batches: int = 0
    total: int | None = None
    waits: Annotated[bool | None, SPARSE] = None
    finished: Annotated[tuple[FinishedSet, ...], AtMost(MOST_FINISHED_SETS), SPARSE] = ()


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """Hold the numbers of the newest plan and the newest outcome that a node has read.

    `segments` is `SEGMENTS_KNOWN` of its release; 0: an older one, which reads no segments.
    """

    plan: int
    outcome: int
    segments: int = 0


@dataclass(frozen=True, slots=True)
class NumericProfiles:
    """Hold the digests of a node's numeric profile; None while unknown."""

    profile: str | None = None  # measured when the task was checked
    joined_profile: str | None = None  # from a worker that joined a group and built the model

    @property
    def shown(self) -> str:
        """Return the known digests, as people read them."""
        return "+".join(digest for digest in (self.profile, self.joined_profile) if digest is not None)

    def fit(self, other: "NumericProfiles") -> bool:
        """Return whether each of these profiles is unknown or equal to that of `other`."""
        return self.profile in (None, other.profile) and self.joined_profile in (None, other.joined_profile)


@dataclass(frozen=True, slots=True)
class CheckpointSightings:
    """Hold the checkpoints that one node needs. Names are those of `Checkpoint.folder`."""

    unreadable: Annotated[tuple[str, ...], AtMost(256)] = ()  # checkpoints that this node cannot read now
    sees: Annotated[tuple[str, ...], AtMost(256)] = ()  # the oldest complete ones that need an evaluation
    sees_more: bool = False  # whether there are more than `sees` lists
    exports: ExportRule | None = None  # which of the best ones its settings retain
    damaged: Annotated[tuple[str, ...], AtMost(256)] = ()  # checkpoints that it gave up as corrupt, and are not settled


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutNode:
    """Hold what people read about a node. Only `load`, and the version of an older release, take part in decisions."""

    role_source: str
    page_url: str | None = None  # of its status page
    version: str
    load: float | None = None  # processes that want to run for each processor, in the last minute; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Hold the state of a node, in a file that it rewrites with every beat.

    `beat` counts up, and a change of any field is a sign of life. A change of `doing`, `checkpoints` or the load
    does not cause a beat; the next beat writes them. `doing`: the progress of the workers in plan `journal.plan`;
    `None`: no part in it.
    """

    LIMITS: ClassVar[RecordLimits] = HEARTBEAT

    run: str
    node: str
    incarnation: str
    beat: int
    role: Role
    about: Inlined[AboutNode]
    state: NodeState
    task: str | None
    journal: Inlined[JournalPosition]
    slots: Annotated[tuple[Slot, ...], AtMost(512)]
    numerics: Inlined[NumericProfiles] = NumericProfiles()
    evaluation_code: str | None = None  # digest of the code that makes numbers; None: an older release
    doing: Annotated[tuple[WorkerProgress, ...], AtMost(512)] | None = None
    checkpoints: Inlined[CheckpointSightings] = CheckpointSightings()
    schema: int = SCHEMA

    def finished_in(self, plan: int | None) -> tuple[FinishedSet, ...]:
        """Return the eval sets that this node reports as finished in a plan."""
        workers = (self.doing or ()) if self.journal.plan == plan else ()
        return tuple(each for worker in workers for each in worker.finished)

    @property
    def code(self) -> str:
        """Return what is equal for nodes that make numbers with the same code: its digest, or an older release."""
        return self.about.version if self.evaluation_code is None else self.evaluation_code

    @property
    def active(self) -> int:
        """Return the number of worker processes that are in a group."""
        return sum(slot.worker is not None for slot in self.slots)

    @property
    def standby(self) -> int:
        """Return the number of worker processes that are ready to join one."""
        return sum(slot.standby is not None for slot in self.slots)
