"""The messages between a daemon and its worker process: one JSON object per line, in both directions.

Imported by both sides, so standard library only. Commands go down the worker's standard input, reports come up a pipe
of their own: whatever the user's code prints goes to the worker's log file instead. Either side closing its end is a
message too: the worker then ends, the daemon then reaps.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.codec import from_json
from sidecar.errors import RecordError
from sidecar.records import Checkpoint, Lasting, Member, Result, SaveWeights
from sidecar.states import FailureKind, WorkerPhase

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""A longer line is not read: a worker gone wild must not fill the daemon's memory."""

BackendOptions = dict[str, Any]
"""Settings of one framework by name, as JSON values. Only the backend of that framework reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Import the task; report whether it can be used, and with what this node would compute. There is no group."""

    task: str
    framework: str
    search_path: str  # where modules of the task are found: the folder the daemon was started in
    threads: int
    options: BackendOptions = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Form the group, then import and build the task. A worker joins once in its life."""

    group: str
    members: tuple[Member, ...]
    rank: int
    task: str
    framework: str
    search_path: str
    threads: int
    cache_bytes: int = 0  # prepared batches kept between checkpoints, at most
    options: BackendOptions = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Evaluate one checkpoint. `path` is what the format restores from, `save_to` this worker's own empty folder.

    `save_root` is the part of `save_to` in which links are followed; empty: all but its last name. `evaluated` is the
    plan's: it decides which eval sets take part, all of them at 0. `attempt` is the plan's, too: the first one restores
    while data are read, later ones after that, so that it is known which of the two crashes.
    """

    plan: int
    checkpoint: Checkpoint
    path: str
    save_to: str
    save_weights: SaveWeights  # of which ranks
    progress_seconds: float  # at most one Progress report per so many seconds
    evaluated: int = 0
    save_root: str = ""
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Ready:
    """The framework is imported; the worker stands by."""

    framework: str
    version: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The task can be used."""

    task: str  # digest of its code
    eval_sets: tuple[str, ...]
    profile: dict[str, str]  # the numeric profile, but for the GPUs, which the process that checks does not see
    builds_model: bool = True  # false: it can evaluate stored graphs only


@dataclass(frozen=True, slots=True)
class Phase:
    """The worker entered a phase."""

    phase: WorkerPhase
    plan: int | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """The group is formed, the task built: the worker waits for checkpoints."""

    group: str
    task: str  # digest of its code
    profile: dict[str, str]


@dataclass(frozen=True, slots=True)
class Progress:
    """Batches done so far, over all eval sets: of all data while `total` is null (read), else of this rank's own."""

    plan: int
    batches: int
    total: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The evaluation's result, the same on every rank. `traces` and `builds` count for the life of the process."""

    plan: int
    rank: int
    result: Result
    traces: int
    builds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A failure, as data. `message` is for the user: it has their own traceback if their code raised.

    `sides`: ranks that said the same, where ranks compared what they are about to do and it differs. `lasting` as in
    `records.Outcome`.
    """

    kind: FailureKind
    message: str
    plan: int | None = None
    rank: int | None = None
    phase: WorkerPhase | None = None
    details: dict[str, str] = field(default_factory=dict)
    lost: int | None = None  # the rank that could not be reached, where that is known
    sides: tuple[tuple[int, ...], ...] = ()
    lasting: Lasting | None = None


Command = Check | Join | Evaluate
Report = Ready | Checked | Phase | Joined | Progress | Done | Failed

_BY_NAME: Final[dict[str, type[Any]]] = {
    cls.__name__: cls for cls in (Check, Join, Evaluate, Ready, Checked, Phase, Joined, Progress, Done, Failed)
}


def encode(message: Command | Report) -> bytes:
    """Return a message as one line, with its newline."""
    body = {"type": type(message).__name__, **dataclasses.asdict(message)}
    return json.dumps(body, allow_nan=False, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Command | Report:
    """Read one line back; raise `RecordError` if it is not a message of this protocol."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not a message: {line[:80]!r}") from error
    name = body.get("type") if isinstance(body, dict) else None
    if not isinstance(name, str) or name not in _BY_NAME:
        raise RecordError(f"unknown message {name!r}")
    message: Command | Report = from_json(_BY_NAME[name], body)
    return message
