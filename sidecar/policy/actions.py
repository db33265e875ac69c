"""Define the actions that the policy can decide on. The loop carries them out."""

from dataclasses import KW_ONLY, dataclass

from sidecar.protocol.records import Checkpoint, Lasting, Member, Settlement
from sidecar.protocol.states import FailureKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """Open the next plan: evaluate a checkpoint with these members, or only settle other checkpoints."""

    checkpoint: Checkpoint | None = None  # None: the plan only settles
    attempt: int = 0
    members: tuple[Member, ...] | None = None
    settles: tuple[Settlement, ...] = ()
    evaluated: int = 0  # as in `Plan`
    line_open: bool = False  # as in `Plan`


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Close the open plan as failed. The fields are those of `Outcome`."""

    kind: FailureKind
    message: str
    _: KW_ONLY
    node: str | None = None
    rank: int | None = None
    odd: tuple[str, ...] = ()
    lasting: Lasting | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until something happens, or until a time; `listen` if another node is about to write a record.

    `for_workers`: a checkpoint could be evaluated now, so that worker processes have something to do.
    """

    until: float | None = None
    why: str = ""
    listen: bool = False
    for_workers: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """End this node's part in the run."""

    why: str
    failed: int  # checkpoints that failed for good


Action = Propose | Fail | Wait | Stop
