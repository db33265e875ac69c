"""Define the messages between a daemon and its worker process: one JSON object per line, in both directions.

Commands go through the worker's standard input. Reports have a pipe of their own, because the output of the user's code
goes to the worker's log file. If the daemon closes its end, the worker ends; if the worker closes its end, the daemon
waits for the process. Both sides import this module, so it uses the standard library only.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from sidecar.errors import RecordError
from sidecar.protocol.codec import from_json
from sidecar.protocol.records import Checkpoint, FinishedSet, Lasting, Member, Result
from sidecar.protocol.saved_weights import SaveWeights
from sidecar.protocol.states import FailureKind, WorkerPhase

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of a line: a worker with a bug must not fill the daemon's memory."""

BackendOptions = dict[str, Any]
"""Settings of one framework by name, as JSON values. Only the backend of that framework reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Import the task, and report whether it can be used and the numeric profile of this node. There is no group."""

    task: str
    framework: str
    search_path: str  # where modules of the task are found: the folder the daemon was started in
    threads: int
    options: BackendOptions = field(default_factory=dict)
    processes: int = 1  # that divide the model of one worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Form the group, then import and build the task. A worker joins one group in its life, or some of itself alone."""

    group: str
    members: tuple[Member, ...]
    rank: int
    task: str
    framework: str
    search_path: str
    threads: int
    cache_bytes: int = 0  # the most bytes of prepared batches that are retained between checkpoints
    options: BackendOptions = field(default_factory=dict)
    processes: int = 1  # that divide the model of this worker
    process: int = 0  # the number of this one; only the first, the leader, gets commands from the daemon
    meeting: str = ""  # HOST:PORT at which they meet, which the leader adds


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Evaluate one checkpoint."""

    plan: int  # the number of the plan
    checkpoint: Checkpoint
    path: str  # the path that the format restores from
    save_to: str  # the empty folder of this worker for its files
    save_weights: SaveWeights  # the ranks that save their weights
    progress_seconds: float  # at most one Progress report is sent per so many seconds
    evaluated: int = 0  # the field of the plan that decides which eval sets take part; all of them if it is 0
    save_root: str = ""  # the part of `save_to` in which links are followed; empty: all except its last name
    # The number of the attempt in the plan. The first one restores while data are read, later ones restore afterwards,
    # so that it becomes known which of the two crashes.
    attempt: int = 1
    # Evaluate only so many batches of each eval set, to try it out. It is the same for all commands to one worker
    # process.
    most_batches: int | None = None
    # The folder, below `save_root`, in which the ranks keep eval sets that are finished for a later attempt; empty:
    # they do not.
    finished_sets: str = ""
    keep_batches_seconds: float = 30.0  # between two times that finished batches of a set are written there


@dataclass(frozen=True, slots=True)
class Ready:
    """Report that the framework is imported and that the worker stands by."""

    framework: str
    version: str


@dataclass(frozen=True, slots=True)
class Checked:
    """Report that the task can be used."""

    task: str  # digest of its code
    eval_sets: tuple[str, ...]
    profile: dict[str, str]  # the numeric profile without the GPUs, which the checking process does not see
    builds_model: bool = True  # false: the task can evaluate stored graphs only


@dataclass(frozen=True, slots=True)
class Phase:
    """Report that the worker entered a phase."""

    phase: WorkerPhase
    plan: int | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """Report that the group is formed and the task is built. The worker waits for checkpoints."""

    group: str
    task: str  # digest of its code
    profile: dict[str, str]
    eval_sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """Report the batches done so far, over all eval sets.

    While the data are read, `total` is None and batches of all data count. Later only this rank's own batches count.
    """

    plan: int
    batches: int
    total: int | None


@dataclass(frozen=True, slots=True)
class SetFinished:
    """Report the numbers of an eval set that all ranks have finished, while others are still evaluated.

    They are for people alone: nothing is decided before the result of all sets.
    """

    plan: int
    finished: FinishedSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Report the evaluation's result, which is the same on every rank. The other numbers are those of this rank.

    `traces` and `builds` count since the start of the process, and the memory is the most that it had since then.
    """

    plan: int
    rank: int
    result: Result
    traces: int
    builds: int
    weights_bytes: int = 0  # of the restored weights
    memory_bytes: int = 0
    gpu_bytes: int = 0  # memory of the GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Report a failure. `message` is for the user; it contains the traceback if the user's code raised.

    `sides`: the ranks by answer, if ranks compared their next steps and found a difference. `lasting`: as in
    `records.Outcome`.
    """

    kind: FailureKind
    message: str
    plan: int | None = None
    rank: int | None = None
    phase: WorkerPhase | None = None
    details: dict[str, str] = field(default_factory=dict)
    lost: int | None = None  # the rank that could not be reached, if that is known
    sides: tuple[tuple[int, ...], ...] = ()
    lasting: Lasting | None = None


Command = Check | Join | Evaluate
Report = Ready | Checked | Phase | Joined | Progress | SetFinished | Done | Failed

_BY_NAME: Final[dict[str, type[Any]]] = {cls.__name__: cls for cls in (*get_args(Command), *get_args(Report))}


def encode(message: Command | Report) -> bytes:
    """Return a message as one line, with its newline."""
    body = {"type": type(message).__name__, **dataclasses.asdict(message)}
    return json.dumps(body, allow_nan=False, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Command | Report:
    """Return the message in one line. Raises `RecordError` if it is not a message of this protocol."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not a message: {line[:80]!r}") from error
    name = body.get("type") if isinstance(body, dict) else None
    if not isinstance(name, str) or name not in _BY_NAME:
        raise RecordError(f"unknown message {name!r}")
    message: Command | Report = from_json(_BY_NAME[name], body)
    return message
