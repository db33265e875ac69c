"""Frozen values that cross a border: between packages, between processes, or into a journal file.

`sidecar.codec` writes them as JSON and reads them back. Standard library only, since worker processes import this
under the user's interpreter.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import quote

from sidecar.states import NodeState, OutcomeStatus, Verdict

SCHEMA: Final = 1
"""Version of every record in the state directory. A newer one means: do not act."""

INLINED: Final = "inlined"
"""Marks a part of a record whose fields stand in the JSON object of the record itself: see `Inlined`."""

T = TypeVar("T")
Inlined = Annotated[T, INLINED]
"""The type of a field that holds a part of a record. The JSON has the part's fields, and no name for the part."""

Key = tuple[str, str]
"""The identity of a checkpoint: its name and digest."""

Role = Literal["worker", "chief"]
SaveWeights = Literal["all", "first", "none"]
StepSource = Literal["step_key", "step_pattern", "optimizer", "variable", "name", "order"]
"""How a step was found: by the user's settings, in a variable of the files (the optimizer's count, or another), or in
the name. `order`: none was found; the journal numbers such checkpoints in the order in which they were written."""
Lasting = Literal["checkpoint", "task"]

_LONGEST_FOLDER: Final = 200  # of the 255 bytes that a file name may have

PHASES: Final = ("detect", "agree", "join", "restore", "evaluate", "reduce", "save", "publish")
"""The phases into which the time from the save of a checkpoint to its gauges is divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint. Changed content under a known name is another checkpoint.

    `name` is its path prefix relative to checkpoint_dir, `digest` a hex SHA-256 over names, sizes and the format's own
    checksums, `pin` the folder that holds it, relative to the run's state directory, once it is pinned. `step` is
    `None` in files where `step_source` is `order`: `JournalState` numbers such checkpoints.
    """

    name: str
    digest: str
    step: int | None
    format: str
    pin: str | None = None
    step_source: str | None = None  # a StepSource, or a word of a newer release; null: written by an older one

    @property
    def key(self) -> Key:
        """Return the checkpoint's identity."""
        return self.name, self.digest

    @property
    def shown_step(self) -> str:
        """Return the step for people: `500`, `#3` for the third in order of writing, or nothing."""
        return shown_step(self.step, self.step_source)

    @property
    def folder(self) -> str:
        """Return the name of the checkpoint's folder: see `folder_name`."""
        return folder_name(self.key)


def folder_name(key: Key) -> str:
    """Return a file name for a checkpoint, unique and safe on any filesystem: `ckpt-5@0123456789ab`."""
    name, digest = quote(key[0], safe="-_.+=,", errors="surrogatepass"), key[1]
    if len(name) > _LONGEST_FOLDER:  # two names of one content may differ only in what is cut off
        name = f"{name[: _LONGEST_FOLDER - 17]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"{name}@{digest[:12]}"


def shown_step(step: int | None, source: str | None) -> str:
    """Return a step for people: `500`, `#3` for the third in order of writing, or nothing."""
    if step is None:
        return ""
    return f"#{step}" if source == "order" else str(step)


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of an eval group. `worker` is unique for all time, `address` is HOST:PORT."""

    rank: int
    node: str
    worker: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The end of a checkpoint that no evaluation will succeed on, or (`requeued`) that a person reopened it.

    `task` limits a failure to that task digest.
    """

    name: str
    digest: str
    step: int | None
    verdict: Verdict
    reason: str
    task: str | None = None

    @property
    def key(self) -> Key:
        """Return the checkpoint's identity."""
        return self.name, self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One numbered attempt to evaluate one checkpoint with one group; without members it only settles.

    `evaluated` counts the evaluations that had succeeded since the task changed: it decides which eval sets take part.
    Whoever proposes has read every outcome, so all nodes would say the same. `line_open` is true as long as the next
    plan settles more of what was there before the start (start=new): there may be more than one record holds.
    """

    plan: int
    run: str
    nonce: str
    checkpoint: Checkpoint | None
    attempt: int
    members: tuple[Member, ...] | None
    settles: tuple[Settlement, ...]
    task: str | None
    proposer: str
    proposed_at: str
    evaluated: int = 0
    line_open: bool = False
    schema: int = SCHEMA

    @property
    def folder(self) -> str:
        """Return the folder in which the ranks save, relative to the run's state directory."""
        assert self.checkpoint is not None
        return f"evaluations/{self.checkpoint.folder}/plan-{self.plan}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A metric's final number: `value` is None if it is not finite, `hex` is exact (`float.hex`, or nan, inf, -inf)."""

    value: float | None
    hex: str
    lower: float | None = None
    upper: float | None = None
    goal: Literal["max", "min", "none"] = "none"

    @property
    def number(self) -> float | str:
        """Return the number, or `nan`, `inf`, `-inf` as text, which strict JSON can carry."""
        return self.hex if self.value is None else self.value


Sharding = Literal["batches", "files", "own"]
"""How an eval set is divided among the ranks: see `EvalData`."""


@dataclass(frozen=True, slots=True)
class EvalData:
    """Describe the data of an eval set. Two results are comparable if their fingerprints and example counts are equal.

    `sharding` says how the data was divided among n ranks, and what that guarantees:

    - `batches`: all ranks read the same stream, and batch b went to rank b mod n. Each example counts once, and the
      bits are those of one worker. Two cases divide differently, with the same guarantee. If a set that is read file
      by file has fewer files than workers, batch j of file i goes to rank (i + j) mod n. If the model has layers that
      carry state from batch to batch, all batches go to rank 0.
    - `files`: file i went whole to rank i mod n, and no batch spans two files. The guarantee is the same, except that
      the contents were not compared: all ranks saw the same list of files with their sizes.
    - `own`: the set divides itself. Only the counts are guaranteed.
    """

    fingerprint: str | None  # of the contents of all batches in order, or of the list of files; null for `own`
    batches: int | None  # null where no rank reads them all
    sharding: Sharding


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """Examples that hold NaN or infinite numbers in one place, and the first: its batch and its own number, from 0.

    Null where a set divides itself, so that no example has a number.
    """

    examples: int
    first_batch: int | None
    first_example: int | None

    def told(self, eval_set: str, place: str) -> str:
        """It in words: `eval set 'test': 3 examples have NaN or infinite predictions, the first is …`."""
        some = "1 example has" if self.examples == 1 else f"{self.examples} examples have"
        first = "" if self.first_example is None else f", the first is example {self.first_example}"
        batch = "" if self.first_batch is None else f" (batch {self.first_batch}), counted from 0"
        return f"eval set {eval_set!r}: {some} NaN or infinite {place}s{first}{batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of an evaluation: the same on every rank."""

    group: str
    workers: int
    examples: dict[str, int]
    metrics: dict[str, dict[str, Value]]
    phases: dict[str, float]  # seconds of each of PHASES, the slowest rank's; detect and agree as the closer saw them
    variables: str  # digest of the restored variables' values
    task: str  # digest of the task's code
    profile: dict[str, str]  # numeric profile: results are bit-identical within one
    saves: tuple[str, ...]  # one folder per rank, relative to the run's state directory
    classes: dict[str, dict[str, dict[str, Value]]] = field(default_factory=dict)  # eval set, metric, class
    data: dict[str, EvalData] = field(default_factory=dict)
    changed: tuple[str, ...] = ()  # eval sets that hold other data than when they were evaluated before
    nonfinite: dict[str, dict[str, Nonfinite]] = field(default_factory=dict)  # by eval set and place
    notes: tuple[str, ...] = ()  # what the numbers are where they are not what a reader expects, in sentences

    def warnings(self) -> list[str]:
        """Return what people should know before they believe the numbers."""
        return [each.told(name, place) for name, places in self.nonfinite.items() for place, each in places.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a plan ended. `plan_nonce` is that of the plan: a number alone may come to stand for another one.

    `odd` names the nodes whose values were not those of most others; empty if nobody can say. `lasting`: the failure
    follows from code and shapes alone, so that every attempt at this `checkpoint`, or at any one with this `task`, ends
    like this; null if another attempt may succeed.
    """

    plan: int
    run: str
    nonce: str
    status: OutcomeStatus
    closed_by: str
    completed_at: str
    result: Result | None = None
    kind: str | None = None
    node: str | None = None
    rank: int | None = None
    message: str | None = None
    odd: tuple[str, ...] = ()
    plan_nonce: str | None = None  # null: written by an older release
    lasting: Lasting | None = None  # null, too, if written by an older release
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One replica of a node in its heartbeat: the worker in a group, and the worker that stands by."""

    worker: str | None
    group: str | None
    address: str | None
    standby: str | None
    standby_address: str | None


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """Describe the progress of one worker in the open plan, at the time of its node's heartbeat.

    `batches` of `total` are done. `total` is `None` while the number of batches is unknown.
    """

    worker: str
    phase: str
    batches: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """The newest plan and the newest outcome that a node has read."""

    plan: int
    outcome: int


@dataclass(frozen=True, slots=True)
class NumericProfiles:
    """Digests of a node's numeric profile; null where it is not known yet."""

    profile: str | None = None  # measured when the task was checked
    joined_profile: str | None = None  # from a worker that joined a group and built the model

    @property
    def shown(self) -> str:
        """Return the digests that are known, for people."""
        return "+".join(digest for digest in (self.profile, self.joined_profile) if digest is not None)

    def fit(self, other: "NumericProfiles") -> bool:
        """Return whether each of these profiles equals that of `other`, or is not known yet."""
        return self.profile in (None, other.profile) and self.joined_profile in (None, other.joined_profile)


@dataclass(frozen=True, slots=True)
class CheckpointSightings:
    """Checkpoints that need an evaluation, as one node finds them. The names are those of `Checkpoint.folder`."""

    unreadable: tuple[str, ...] = ()  # this node cannot read them now
    sees: tuple[str, ...] = ()  # the oldest complete ones
    sees_more: bool = False  # whether there are more of those than `sees` lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Describe a node in the file that it rewrites with every beat.

    `beat` counts up, and a change of any field is a sign of life. `doing` and `checkpoints` are brought up to date by
    the next beat, and a change of them causes no beat of its own. `doing` is the progress of the node's workers in the
    plan `journal.plan`; `None` if the node has no part in that plan, or runs an older version.
    """

    run: str
    node: str
    incarnation: str
    beat: int
    role: Role
    role_source: str
    state: NodeState
    version: str
    task: str | None
    journal: Inlined[JournalPosition]
    slots: tuple[Slot, ...]
    numerics: Inlined[NumericProfiles] = NumericProfiles()
    doing: tuple[WorkerProgress, ...] | None = None
    checkpoints: Inlined[CheckpointSightings] = CheckpointSightings()
    schema: int = SCHEMA


def group_id(members: Sequence[Member]) -> str:
    """Return a hash of the ordered worker ids: the same workers in the same order are the same group."""
    return hashlib.sha256("\n".join(member.worker for member in members).encode()).hexdigest()[:16]
