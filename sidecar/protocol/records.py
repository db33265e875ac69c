"""Define the frozen records that are passed between packages and processes, or written to the journal.

`sidecar.protocol.codec` converts them to JSON and back. Standard library only, because worker processes import this
module under the user's interpreter.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, ClassVar, Final, Literal, TypeVar
from urllib.parse import quote

from sidecar.protocol.record_limits import OUTCOME, PLAN, AtMost, RecordLimits
from sidecar.protocol.states import OutcomeStatus, Verdict

SCHEMA: Final = 1
"""Version of the records in the state directory. A daemon does not act on records with a newer version."""

INLINED: Final = "inlined"
"""Marker of a part whose fields are in the JSON object of the whole record: see `Inlined`."""

UNSAVED: Final = "unsaved"
"""Marker of a field that no file has."""

SPARSE: Final = "sparse"
"""Marker of a field that a file has only if it is neither None nor an empty dict or tuple."""

T = TypeVar("T")
Inlined = Annotated[T, INLINED]
"""The type of a field that holds a part of a record. The JSON has the fields of the part, but not its name."""

Message = Annotated[str, AtMost(65_536, cut=True)]
"""A text for people, which a traceback may be part of. A writer cuts it."""

Sentence = Annotated[str, AtMost(4096, cut=True)]
"""A short text for people. A writer cuts it."""

Names = Annotated[tuple[str, ...], AtMost(4096)]

Key = tuple[str, str]
"""The identity of a checkpoint: its name and digest."""

Role = Literal["worker", "chief"]
StepSource = Literal["step_key", "step_pattern", "optimizer", "variable", "name", "order"]
"""The source of a step: the user's settings, a variable in the files (the optimizer's count, or another), or the name.
`order` means that no step was found; the journal numbers such checkpoints in the order in which they were written."""
Lasting = Literal["checkpoint", "task"]

FINISHED_SETS: Final = ".finished-sets"
_LONGEST_FOLDER: Final = 200  # a file name may have 255 bytes

PHASES: Final = ("detect", "agree", "join", "restore", "evaluate", "reduce", "save", "publish")
"""The phases into which the time from the save of a checkpoint to its gauges is divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Hold one complete checkpoint. A known name with changed content is another checkpoint.

    `name` is the path prefix relative to checkpoint_dir. `digest` is a hex SHA-256 over names, sizes and the checksums
    of the format; for objects of a bucket, over names, sizes and etags, with `:etag` at its end. `pin` is the folder of
    the pinned files relative to the run's state directory, once there is one.
    `step` is `None` in journal files if `step_source` is `order`: `JournalState` numbers such checkpoints.
    """

    name: str
    digest: str
    step: int | None
    format: str
    pin: str | None = None
    step_source: str | None = None  # a StepSource, or a newer release's value; None: an older one's

    @property
    def key(self) -> Key:
        """Return the checkpoint's identity."""
        return self.name, self.digest

    @property
    def shown_step(self) -> str:
        """Return the step as people read it: see the function `shown_step`."""
        return shown_step(self.step, self.step_source)

    @property
    def folder(self) -> str:
        """Return the name of the checkpoint's folder in pins and saves: see `folder_name`."""
        return folder_name(self.key)


@lru_cache(maxsize=1024)
def folder_name(key: Key) -> str:
    """Return a file name for a checkpoint, unique and safe on any filesystem: `ckpt-5@0123456789ab`."""
    name, digest = quote(key[0], safe="-_.+=,", errors="surrogatepass"), key[1]
    if len(name) > _LONGEST_FOLDER:  # names may differ only in the part that is cut off
        name = f"{name[: _LONGEST_FOLDER - 17]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"{name}@{digest[:12]}"


def shown_step(step: int | None, source: str | None) -> str:
    """Return a step as people read it: `500`, `#3` for the third in order of writing, or an empty text."""
    if step is None:
        return ""
    return f"#{step}" if source == "order" else str(step)


@dataclass(frozen=True, slots=True)
class Member:
    """Hold one rank of an eval group. The id `worker` is never used again, `address` is HOST:PORT.

    `host` is the machine of a cluster on which the worker runs; None: it runs on the node itself.
    """

    rank: int
    node: str
    worker: str
    address: str
    host: Annotated[str | None, SPARSE] = None

    @property
    def place(self) -> str:
        """Return the place that a failure of this rank is blamed on: see `place_of`."""
        return place_of(self.node, self.host)


def place_of(node: str, host: str | None) -> str:
    """Return the place that failures are blamed on: a node, or one of the machines that it commands, as NODE/HOST."""
    return node if host is None else f"{node}/{host}"


def node_of(place: str) -> str:
    """Return the node of a place. The name of a node has no slash, because it is a file name."""
    return place.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """Hold the end of a checkpoint without an evaluation or, as `requeued`, the note that a person reopened it.

    `task` limits a failure to the task with this digest.
    """

    name: str
    digest: str
    step: int | None
    verdict: Verdict
    reason: Sentence
    task: str | None = None

    @property
    def key(self) -> Key:
        """Return the checkpoint's identity."""
        return self.name, self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Hold one numbered attempt to evaluate a checkpoint with a group. A plan without members only settles checkpoints.

    `evaluated` is the number of successful evaluations since the task changed; it decides which eval sets take part. A
    node that proposes a plan has read every outcome, so all nodes would write the same number. `line_open` is true if
    the next plan also settles checkpoints from before the start (start=new), which may not fit into one record.
    `void` is the reason why the record of that number was set aside; the plan then does nothing, and is closed.
    """

    LIMITS: ClassVar[RecordLimits] = PLAN

    plan: int
    run: str
    nonce: str
    checkpoint: Checkpoint | None
    attempt: int
    members: Annotated[tuple[Member, ...], AtMost(4096)] | None
    settles: Annotated[tuple[Settlement, ...], AtMost(4096)]
    task: str | None
    proposer: str
    proposed_at: str
    evaluated: int = 0
    line_open: bool = False
    schema: int = SCHEMA
    void: Annotated[str | None, UNSAVED] = None

    @property
    def folder(self) -> str:
        """Return the folder of the saves of the ranks, relative to the run's state directory."""
        assert self.checkpoint is not None
        return f"evaluations/{self.checkpoint.folder}/plan-{self.plan}"

    @property
    def finished_sets(self) -> str:
        """Return the folder in which the ranks keep eval sets that are finished, for a later plan of the checkpoint."""
        assert self.checkpoint is not None
        return f"evaluations/{self.checkpoint.folder}/{FINISHED_SETS}"

    @property
    def saves(self) -> tuple[str, ...]:
        """Return the folder of the saves of each rank, relative to the run's state directory."""
        members = self.members or ()
        return tuple(f"{self.folder}/worker-{member.rank}-of-{len(members)}" for member in members)


Goal = Literal["max", "min", "none"]
"""Whether larger or smaller numbers of a metric are better, or neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Hold the number of a metric: `value` is None if not finite; `hex` is exact (`float.hex`, or nan, inf, -inf)."""

    value: float | None
    hex: Annotated[str, AtMost(64)]
    lower: float | None = None
    upper: float | None = None
    goal: Goal = "none"

    @property
    def number(self) -> float | str:
        """Return the number, or `nan`, `inf`, `-inf` as text, which strict JSON can carry."""
        return self.hex if self.value is None else self.value


MOST_FINISHED_SETS: Final = 64
"""The most eval sets that are shown before the whole evaluation is over."""

MOST_PARTIAL_NUMBERS: Final = 8
"""The most numbers of each of them."""


@dataclass(frozen=True, slots=True)
class FinishedSet:
    """Hold the first numbers of an eval set in the open plan, which may still fail. No outcome holds it."""

    eval_set: str
    examples: int
    metrics: Annotated[dict[str, Value], AtMost(MOST_PARTIAL_NUMBERS)]


Sharding = Literal["batches", "files", "own"]
"""The way in which an eval set is divided among the ranks: see `EvalData`."""


@dataclass(frozen=True, slots=True)
class EvalData:
    """Hold the data of an eval set. Two results are comparable if their fingerprints and example counts are equal.

    `sharding` is the way in which the data was divided among n ranks, with these guarantees:

    - `batches`: all ranks read the same stream, and batch b went to rank b mod n. Each example counts once, and the
      bits are those of one worker. The same holds if batch j of file i went to rank (i + j) mod n (fewer files than
      workers), or all to rank 0 (layers that carry state). With `sampled`, ranks read their own batches and a sample.
    - `files`: the whole file i went to rank i mod n, and no batch spans two files. The guarantee is the same, except
      that no contents were compared: all ranks saw the same list of files with their sizes.
    - `own`: the set divides itself. Only the counts are guaranteed.
    """

    fingerprint: str | None  # of all batches in order, or of what all ranks compared; None for `own`
    batches: int | None  # None if no rank reads all of them
    sharding: Sharding
    sampled: int | None = None  # batches whose contents all ranks compared, if these are not all


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """Hold the number of examples with NaN or infinite numbers in one place, and the numbers of the first, from 0.

    `first_batch` and `first_example` are None for a set that divides itself, where examples have no numbers.
    """

    examples: int
    first_batch: int | None
    first_example: int | None

    def describe(self, eval_set: str, place: str) -> str:
        """Return a sentence: `eval set 'test': 3 examples have NaN or infinite predictions, the first is …`."""
        subject = "1 example has" if self.examples == 1 else f"{self.examples} examples have"
        first = "" if self.first_example is None else f", the first is example {self.first_example}"
        batch = "" if self.first_batch is None else f" (batch {self.first_batch}), counted from 0"
        return f"eval set {eval_set!r}: {subject} NaN or infinite {place}s{first}{batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Hold the numbers of a part of an eval set, such as of the examples of one country."""

    examples: int
    metrics: Annotated[dict[str, Value], AtMost(4096)]


MOST_EVAL_SETS: Final = 256
"""The most eval sets of a result: four times as many as a task may have."""

MOST_METRICS: Final = 4096
"""The most metrics of a result, of all eval sets together."""

MOST_CLASSES: Final = 16_384
"""The most numbers of single classes in a result, of all metrics and eval sets together."""

WORST: Final = "worst_slice_"
"""Beginning of the name of the worst number of a metric among slices."""

MOST_SLICES: Final = 4096
"""The most slices of a result, of all eval sets together, and the most numbers of slices."""

_BySet = Annotated[dict[str, T], AtMost(MOST_EVAL_SETS)]
_ByMetric = Annotated[dict[str, T], AtMost(MOST_METRICS)]
_ByClass = Annotated[dict[str, T], AtMost(MOST_CLASSES)]
_BySlice = Annotated[dict[str, T], AtMost(MOST_SLICES)]
_ByPlace = Annotated[dict[str, T], AtMost(64)]
_ByPhase = Annotated[dict[str, float], AtMost(64)]
Notes = Annotated[tuple[Sentence, ...], AtMost(64, cut=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Hold the result of an evaluation, which is the same on every rank."""

    group: str
    workers: int
    examples: _BySet[int]  # 0: a function of the task measured the set, and did not say the number
    metrics: _BySet[_ByMetric[Value]]
    phases: _ByPhase  # seconds of each of PHASES on the slowest rank; the closing node measures detect, agree
    variables: str  # digest of the values of the restored variables
    task: str  # digest of the task's code
    profile: Annotated[dict[str, str], AtMost(256)]  # numeric profile: equal profiles give equal bits
    saves: Names  # one folder per rank, relative to the run's state directory
    classes: _BySet[_ByMetric[_ByClass[Value]]] = field(default_factory=dict)
    data: _BySet[EvalData] = field(default_factory=dict)
    changed: Names = ()  # eval sets whose data has changed since an earlier evaluation
    nonfinite: _BySet[_ByPlace[Nonfinite]] = field(default_factory=dict)
    notes: Notes = ()  # sentences about numbers that differ from a reader's expectation
    slices: Annotated[dict[str, _BySlice[Slice]], AtMost(MOST_EVAL_SETS), SPARSE] = field(default_factory=dict)
    lag_seconds: float | None = None  # from the last write of the checkpoint; None: nobody saw it appear

    def counted(self) -> dict[str, int]:
        """Return the number of examples of each eval set that has a known number."""
        return {name: examples for name, examples in self.examples.items() if examples}

    def metrics_of_examples(self) -> Iterator[tuple[str, dict[str, Value]]]:
        """Yield the metrics of each eval set whose examples were counted. A forged record may have others."""
        return ((name, metrics) for name, metrics in self.metrics.items() if name in self.examples)

    def warnings(self) -> list[str]:
        """Return sentences about numbers that are not finite, which people should know before they use the result."""
        return [
            nonfinite.describe(name, place)
            for name, places in self.nonfinite.items()
            for place, nonfinite in places.items()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Hold the end of a plan.

    `plan_nonce` is the nonce of the plan, because the number alone could later belong to another plan. `node` is the
    place to blame (`place_of`), and `odd` names the places whose values differ from those of the majority; it is empty
    if there is no majority. `lasting` means that the failure follows only from code and shapes: every attempt at this
    `checkpoint`, or at any checkpoint with this `task`, ends in the same way. None: another attempt may succeed.
    """

    LIMITS: ClassVar[RecordLimits] = OUTCOME

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
    message: Message | None = None
    odd: Names = ()
    plan_nonce: str | None = None  # None: written by an older release
    lasting: Lasting | None = None  # also None if written by an older release
    schema: int = SCHEMA


def group_id(members: Sequence[Member]) -> str:
    """Return a hash of the ordered worker ids: the same workers in the same order are the same group."""
    workers = "\n".join(member.worker for member in members)
    return hashlib.sha256(workers.encode(errors="surrogatepass")).hexdigest()[:16]
