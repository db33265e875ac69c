"""The records as the first release that is supported knows them: fields and their types, and nothing else.

Frozen: this file says what daemons that are not upgraded yet read, in the middle of a rolling upgrade.
"""

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["skipped", "vanished", "corrupt", "failed", "requeued"]
Role = Literal["worker", "chief"]
NodeState = Literal["starting", "ready", "draining", "left"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Hold the former fields of `sidecar.protocol.records.Checkpoint`."""

    name: str
    digest: str
    step: int | None
    format: str
    pin: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """Hold the former fields of `sidecar.protocol.records.Member`."""

    rank: int
    node: str
    worker: str
    address: str


@dataclass(frozen=True, slots=True)
class Settlement:
    """Hold the former fields of `sidecar.protocol.records.Settlement`."""

    name: str
    digest: str
    step: int | None
    verdict: Verdict
    reason: str
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold the former fields of `sidecar.protocol.records.Plan`."""

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
    schema: int = 1


@dataclass(frozen=True, slots=True)
class Value:
    """Hold the former fields of `sidecar.protocol.records.Value`."""

    value: float | None
    hex: str
    lower: float | None = None
    upper: float | None = None
    goal: Literal["max", "min", "none"] = "none"


Sharding = Literal["batches", "files", "own"]


@dataclass(frozen=True, slots=True)
class EvalData:
    """Hold the former fields of `sidecar.protocol.records.EvalData`."""

    fingerprint: str | None
    batches: int | None
    sharding: Sharding


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """Hold the former fields of `sidecar.protocol.records.Nonfinite`."""

    examples: int
    first_batch: int | None
    first_example: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """Hold the former fields of `sidecar.protocol.records.Result`."""

    group: str
    workers: int
    examples: dict[str, int]
    metrics: dict[str, dict[str, Value]]
    phases: dict[str, float]
    variables: str
    task: str
    profile: dict[str, str]
    saves: tuple[str, ...]
    classes: dict[str, dict[str, dict[str, Value]]] = field(default_factory=dict)
    data: dict[str, EvalData] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    nonfinite: dict[str, dict[str, Nonfinite]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold the former fields of `sidecar.protocol.records.Outcome`."""

    plan: int
    run: str
    nonce: str
    status: Literal["succeeded", "failed"]
    closed_by: str
    completed_at: str
    result: Result | None = None
    kind: str | None = None
    node: str | None = None
    rank: int | None = None
    message: str | None = None
    schema: int = 1


@dataclass(frozen=True, slots=True)
class Slot:
    """Hold the former fields of `sidecar.protocol.heartbeat.Slot`."""

    worker: str | None
    group: str | None
    address: str | None
    standby: str | None
    standby_address: str | None


@dataclass(frozen=True, slots=True)
class Doing:
    """Hold the former fields of `sidecar.protocol.heartbeat.WorkerProgress`."""

    worker: str
    phase: str
    batches: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Hold the former fields of `sidecar.protocol.heartbeat.Heartbeat`."""

    run: str
    node: str
    incarnation: str
    beat: int
    role: Role
    role_source: str
    state: NodeState
    version: str
    task: str | None
    plan: int
    outcome: int
    slots: tuple[Slot, ...]
    profile: str | None = None
    doing: tuple[Doing, ...] | None = None
    schema: int = 1


@dataclass(frozen=True, slots=True)
class Run:
    """Hold the former fields of `sidecar.coordination.run.Run`."""

    run: str
    nonce: str
    created_at: str | None = None
    schema: int = 1
