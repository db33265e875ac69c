"""Define the states of nodes, plans, checkpoints and workers, and the words for them on disk and on pipes.

Each state is a `StrEnum`, so JSON holds the same words as the code. Standard library only, because worker processes
import this module under the user's interpreter.
"""

from collections.abc import Mapping
from enum import StrEnum, auto
from typing import Final

_SMALL_STATE_BYTES: Final = 4 * 1024 * 1024
"""Metric states of at most this size cross any link within seconds."""


class NodeState(StrEnum):
    """Name the state of a daemon in its heartbeat.

        STARTING ──task checked──▶ READY ──signal──▶ DRAINING ──evaluation ended──▶ LEFT
           ▲                         │
           └──storage or GPU away────┘

    A daemon that gets a signal while it starts drains, too. A daemon that is killed cannot write `LEFT`: silence for a
    lease means the same.
    """

    STARTING = auto()  # takes part in no plan for now
    READY = auto()  # may be listed in plans
    DRAINING = auto()  # finishes the open plan, and is listed in no other
    LEFT = auto()  # wrote its last heartbeat


class OutcomeStatus(StrEnum):
    """Name the end of a plan: open ──▶ SUCCEEDED or FAILED. Both are final."""

    SUCCEEDED = auto()
    FAILED = auto()


class Verdict(StrEnum):
    """Name the verdict on a checkpoint for which no evaluation will succeed, or that a person reopened.

        waiting ──▶ SKIPPED | VANISHED | CORRUPT | FAILED ──`sidecar requeue`──▶ REQUEUED = waiting again

    `SKIPPED`, `VANISHED` and `CORRUPT` hold for every task, `FAILED` for the task that failed. An evaluation under
    another task may still succeed.
    """

    SKIPPED = auto()  # a newer checkpoint was preferred, or this one existed before the start
    VANISHED = auto()  # deleted before it was pinned
    CORRUPT = auto()  # its files contradict each other
    FAILED = auto()  # failed as often as the settings allow, or failed for a lasting reason
    REQUEUED = auto()


class FailureClass(StrEnum):
    """Name the cause of a failed plan, which decides how often a checkpoint is tried again."""

    CHECKPOINT = auto()  # the checkpoint, the task or the data: trying again rarely helps, so at most `max_attempts`
    GROUP = auto()  # the machines: trying again with others usually helps, so at most `max_losses`
    CORRUPT = auto()  # the files, as one node reads them
    VANISHED = auto()  # the files are gone, as one node sees it


class FailureKind(StrEnum):
    """Name why a plan failed: the closed list behind the `kind` label. `FAILURE_CLASSES` gives the class of each."""

    MISMATCH = auto()  # the model, the checkpoint or the ranks do not agree
    TASK_ERROR = auto()  # the user's code raised
    STREAM_DIFFERS = auto()  # ranks saw different data, or the data changed while they were read
    NONFINITE_INPUT = auto()  # NaN or infinite numbers in data that must not have any
    COUNT = auto()  # the number of examples that were counted differs from the number that exists
    MEMBER_LOST = auto()  # a rank could not reach another one: a consequence, if the other one reports a cause
    WORKER_DIED = auto()
    STALLED = auto()
    DEADLINE = auto()
    JOIN = auto()
    ADDRESS_IN_USE = auto()
    OUT_OF_MEMORY = auto()
    STORAGE = auto()
    RESTARTED = auto()
    DRAINED = auto()
    CHIEF_LISTED = auto()
    VOID = auto()  # the outcome breaks a limit or an invariant, so that no daemon wrote it
    CORRUPT = auto()
    CRASHED = auto()  # the worker process crashed while it read the checkpoint
    VANISHED = auto()


FAILURE_CLASSES: Final[Mapping[str, FailureClass]] = {
    FailureKind.MISMATCH: FailureClass.CHECKPOINT,
    FailureKind.TASK_ERROR: FailureClass.CHECKPOINT,
    FailureKind.STREAM_DIFFERS: FailureClass.CHECKPOINT,
    FailureKind.NONFINITE_INPUT: FailureClass.CHECKPOINT,
    FailureKind.COUNT: FailureClass.CHECKPOINT,
    FailureKind.MEMBER_LOST: FailureClass.GROUP,
    FailureKind.WORKER_DIED: FailureClass.GROUP,
    FailureKind.STALLED: FailureClass.GROUP,
    FailureKind.DEADLINE: FailureClass.GROUP,
    FailureKind.JOIN: FailureClass.GROUP,
    FailureKind.ADDRESS_IN_USE: FailureClass.GROUP,
    FailureKind.OUT_OF_MEMORY: FailureClass.GROUP,
    FailureKind.STORAGE: FailureClass.GROUP,
    FailureKind.RESTARTED: FailureClass.GROUP,
    FailureKind.DRAINED: FailureClass.GROUP,
    FailureKind.CHIEF_LISTED: FailureClass.GROUP,
    FailureKind.VOID: FailureClass.GROUP,
    FailureKind.CORRUPT: FailureClass.CORRUPT,
    FailureKind.CRASHED: FailureClass.CORRUPT,
    FailureKind.VANISHED: FailureClass.VANISHED,
}
"""The class of each kind, by its word: records of a newer release may hold words that are not in this table."""

SECONDARY_KINDS: Final = frozenset({FailureKind.MEMBER_LOST})
"""Kinds that a rank reports as a consequence of another rank's failure: the report of that rank is preferred."""


class PhaseBound(StrEnum):
    """Name the bound on how long a worker may stay in a phase. `workers.timeouts` gives the seconds of each."""

    JOIN = auto()  # to import and to form the group
    FIRST_BATCH = auto()  # to build the model or to compute the final numbers
    BATCHES = auto()  # each batch has a bound, and the first batch a longer one
    STORAGE = auto()  # to read the checkpoint or to write the saves
    GROUP = auto()  # all ranks meet within seconds: daemons judge the whole group instead of single workers
    NONE = auto()


class WorkerPhase(StrEnum):
    """Name the phases of a worker process.

        [PLACE ──▶] IMPORT ──▶ STANDBY ──▶ JOIN ──▶ IMPORT (task) ──▶ BUILD ──▶ IDLE
        IDLE ──▶ READ ──▶ RESTORE ──▶ HELLO ──▶ EVALUATE ──▶ SAVE ──▶ REDUCE | SUM ──▶ CONCLUDE ──▶ IDLE
        any of them ──▶ FAILED

    A daemon notes RESTORE as soon as it has given a checkpoint to a worker. In a first attempt the worker already reads
    the checkpoint during READ.
    """

    PLACE = auto()  # a cluster has not found a machine for it yet
    IMPORT = auto()
    STANDBY = auto()
    JOIN = auto()
    BUILD = auto()
    IDLE = auto()
    READ = auto()
    RESTORE = auto()
    HELLO = auto()  # ranks compare their next steps
    EVALUATE = auto()
    SAVE = auto()
    REDUCE = auto()  # ranks add up their metric states
    SUM = auto()  # the same for large states, which may take long
    CONCLUDE = auto()
    FAILED = auto()

    @property
    def bounded_by(self) -> PhaseBound:
        """Return the bound that holds in this phase."""
        return _BOUNDS.get(self, PhaseBound.NONE)

    @classmethod
    def adding_up(cls, state_bytes: int) -> "WorkerPhase":
        """Return the phase in which ranks add up metric states of that size.

        Daemons consider a group stuck if all its ranks are in a phase bounded by `PhaseBound.GROUP` for some seconds.
        Large states, such as a confusion matrix of a thousand classes, may take longer, so they have their own phase.
        """
        return cls.REDUCE if state_bytes <= _SMALL_STATE_BYTES else cls.SUM


_BOUNDS: Final[Mapping[WorkerPhase, PhaseBound]] = {
    WorkerPhase.IMPORT: PhaseBound.JOIN,
    WorkerPhase.JOIN: PhaseBound.JOIN,
    WorkerPhase.BUILD: PhaseBound.FIRST_BATCH,
    WorkerPhase.READ: PhaseBound.BATCHES,
    WorkerPhase.RESTORE: PhaseBound.STORAGE,
    WorkerPhase.HELLO: PhaseBound.GROUP,
    WorkerPhase.EVALUATE: PhaseBound.BATCHES,
    WorkerPhase.SAVE: PhaseBound.STORAGE,
    WorkerPhase.REDUCE: PhaseBound.GROUP,
    WorkerPhase.CONCLUDE: PhaseBound.FIRST_BATCH,
}

GROUP_PHASES: Final = frozenset(phase for phase in WorkerPhase if phase.bounded_by is PhaseBound.GROUP)
"""Phases in which a rank waits for the others. Heartbeats of newer releases may hold other words."""
