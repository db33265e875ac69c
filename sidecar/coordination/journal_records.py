"""Decode the records of the journal, and set aside those that no daemon writes. Pure.

A record that is whole, but breaks a limit or an invariant, is void: all nodes find that in its bytes alone, so they
agree on it without a word. A void plan N evaluates nothing, settles nothing, and is closed. A void outcome N closes
plan N as a failed attempt of the kind `void`. A record that cannot be parsed, or belongs elsewhere, is an error: other
nodes may have read it before it was damaged.

A plan with a large group has a shorter form in its file (`RankedPlan`), and the file of its result omits the folders of
the saves, which follow from the plan.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar, Final

from sidecar.coordination.unique_names import parse
from sidecar.errors import NewerSchemaError, RecordError, StorageLostError, VoidRecordError
from sidecar.protocol.codec import dumps, limits_of, loads
from sidecar.protocol.record_limits import AtMost
from sidecar.protocol.records import (
    MOST_CLASSES,
    MOST_METRICS,
    MOST_SLICES,
    Member,
    Outcome,
    Plan,
    Result,
    Value,
    group_id,
)
from sidecar.protocol.states import FailureKind, OutcomeStatus
from sidecar.system.plain_text import shortened

PLAN_BYTES: Final = limits_of(Plan).size
OUTCOME_BYTES: Final = limits_of(Outcome).size
"""The bytes of a record that are read. One more proves that it is too long."""

_MOST_MEMBERS: Final = 8
"""The members of a larger group are written as ranks. Plans of smaller ones stay readable for older releases."""

RANKS_SCHEMA: Final = 2
"""Version of a plan that lists a large group as ranks. Older releases refuse it by this number."""

REMEDY: Final = (
    "files of the journal were deleted, or not all of them were restored. Put the missing files back; or stop all "
    "daemons and move the state directory away, to begin a new run that evaluates everything again"
)


def plan_path(number: int) -> str:
    """Return the path of plan `number`."""
    return f"plans/{number:012d}.json"


def outcome_path(number: int) -> str:
    """Return the path of the outcome of plan `number`."""
    return f"outcomes/{number:012d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan(Plan):
    """Hold the form of a plan in its file if its group is large: each of `ranks` takes the place of a member.

    A rank is the node, the part of the worker's id behind the node's name, the address, and the host if there is one.
    """

    KIND: ClassVar[str] = Plan.__name__
    NEWEST_SCHEMA: ClassVar[int] = RANKS_SCHEMA

    ranks: Annotated[tuple[Annotated[tuple[str, ...], AtMost(4)], ...], AtMost(4096)]

    def with_members(self) -> Plan:
        """Return the plan with its members. Raises `ValueError` if a rank has neither three nor four texts."""
        members = tuple(
            Member(rank, node, f"{node}.{rest}", address, _host(host))
            for rank, (node, rest, address, *host) in enumerate(self.ranks)
        )
        return Plan(**{each.name: getattr(self, each.name) for each in fields(Plan)} | {"members": members})


def _host(texts: Sequence[str]) -> str | None:
    """Return the only text, or None if there is none. Raises `ValueError` if there are more."""
    (host,) = texts or (None,)
    return host


def encode(record: Plan | Outcome, plan: Plan | None) -> bytes:
    """Return the content of a new file of the journal. `plan`: that of an outcome, as it was read."""
    if isinstance(record, Plan):
        members = record.members or ()
        if len(members) <= _MOST_MEMBERS or not all(each.worker.startswith(f"{each.node}.") for each in members):
            return dumps(record)
        ranks = tuple(
            (each.node, each.worker[len(each.node) + 1 :], each.address, *filter(None, [each.host])) for each in members
        )
        given = {each.name: getattr(record, each.name) for each in fields(record)}
        return dumps(RankedPlan(**given | {"members": (), "schema": RANKS_SCHEMA, "ranks": ranks}))
    if plan is not None and _omits_saves(plan) and record.result is not None and record.result.saves == plan.saves:
        record = replace(record, result=replace(record.result, saves=()))
    return dumps(record)


def _omits_saves(plan: Plan) -> bool:
    """Return whether the file of a plan's result omits the folders of the saves."""
    return plan.schema == RANKS_SCHEMA and needs_outcome(plan)


def _parse_plan(path: str, data: bytes) -> Plan:
    """Return the plan in `data`, in one of both forms. Raises as `parse`."""
    try:
        return parse(Plan, path, data)
    except NewerSchemaError:
        return parse(RankedPlan, path, data)


def decode_plan(data: bytes, number: int, run: str | None, where: str = "") -> Plan:
    """Return the plan of a number; a plan that does nothing if the record is void. `run`: None if any is right.

    `where`: the begin of the path, for messages about a record in a segment.

    Raises `RecordError` for a record that is damaged or has another number, `StorageLostError` for one of another run.
    """
    path = f"{where}{plan_path(number)}"
    try:
        plan = _parse_plan(path, data)
    except VoidRecordError as error:
        _require_place(path, (error.run, error.plan), (run, number))
        return _void_plan(number, str(error.run) if run is None else run, _void_nonce(data), str(error))
    _require_place(path, (plan.run, plan.plan), (run, number))
    try:
        plan = plan.with_members() if isinstance(plan, RankedPlan) else plan
    except ValueError:
        why: str | None = "a rank has neither three nor four texts"
    else:
        why = next(_broken_by_plan(plan), None)
    return plan if why is None else _void_plan(number, plan.run, plan.nonce, f"{path}: {why}")


def decode_outcome(data: bytes, plan: Plan, where: str = "") -> Outcome:
    """Return the outcome of a plan; a failed attempt if the record is void. Raises as `decode_plan`."""
    path, place = f"{where}{outcome_path(plan.plan)}", (plan.run, plan.plan)
    try:
        outcome = parse(Outcome, path, data)
    except VoidRecordError as error:
        _require_place(path, (error.run, error.plan), place)
        return _void_outcome(plan, _void_nonce(data), str(error))
    _require_place(path, (outcome.run, outcome.plan), place)
    if why := why_of_another(outcome, plan):
        raise StorageLostError(f"{path} does not belong to {plan_path(plan.plan)}: it {why}: {REMEDY}")
    if _omits_saves(plan) and outcome.result is not None and not outcome.result.saves:
        outcome = replace(outcome, result=replace(outcome.result, saves=plan.saves))
    broken = next(_broken_together(outcome, plan), None)
    return outcome if broken is None else _void_outcome(plan, outcome.nonce, f"{path}: {broken}")


def _void_plan(number: int, run: str, nonce: str, why: str) -> Plan:
    return Plan(
        plan=number,
        run=run,
        nonce=nonce,
        checkpoint=None,
        attempt=0,
        members=None,
        settles=(),
        task=None,
        proposer="",
        proposed_at="",
        void=why,
    )


def _void_outcome(plan: Plan, nonce: str, why: str) -> Outcome:
    return Outcome(
        plan=plan.plan,
        run=plan.run,
        nonce=nonce,
        status=OutcomeStatus.FAILED,
        closed_by="",
        completed_at=plan.proposed_at,
        kind=FailureKind.VOID,
        message=f"{why}: the record was set aside, and the checkpoint is evaluated again",
        plan_nonce=plan.nonce,
    )


def needs_outcome(plan: Plan) -> bool:
    """Return whether a plan evaluates a checkpoint, as in `JournalState`. Other plans only settle."""
    return plan.checkpoint is not None and plan.members is not None


def nonce_of(path: str, data: bytes) -> str:
    """Return the nonce of a record of the journal that was read before. Raises `RecordError` if it is damaged."""
    try:
        return _parse_plan(path, data).nonce if path.startswith("plans/") else parse(Outcome, path, data).nonce
    except VoidRecordError:
        return _void_nonce(data)


def unreadable(record: Plan | Outcome, data: bytes) -> str | None:
    """Return why other daemons would set aside a record that is written in these bytes; None if they would not."""
    try:
        if isinstance(record, Plan):
            _parse_plan(plan_path(record.plan), data)
        else:
            loads(Outcome, data)
    except VoidRecordError as error:
        return str(error)
    return next(_broken_by_plan(record) if isinstance(record, Plan) else _broken_by_outcome(record), None)


def too_large(result: Result) -> str | None:
    """Return why the result of an evaluation does not fit into a record; None if it does."""
    outcome = Outcome(
        plan=1,
        run="",
        nonce="",
        status=OutcomeStatus.SUCCEEDED,
        closed_by="",
        completed_at="",
        result=replace(result, saves=()),
    )
    return unreadable(outcome, dumps(outcome))


def why_of_another(outcome: Outcome, plan: Plan) -> str | None:
    """Return why an outcome does not belong to the plan of its number; `None` if it does.

    Outcomes of older releases do not name the nonce of their plan, so only their group is compared.
    """
    if outcome.plan_nonce not in (None, plan.nonce):
        return f"names plan nonce {outcome.plan_nonce:.80}, not {plan.nonce}"
    if outcome.result is not None and outcome.result.group != group_id(plan.members or ()):
        return f"has the result of group {outcome.result.group:.80}, not of the plan's {group_id(plan.members or ())}"
    return None


def _require_place(path: str, found: tuple[object, object], expected: tuple[str | None, int]) -> None:
    """Raise an error if a record belongs to another run or has another number. None: it is unknown."""
    if expected[0] is not None and found[0] not in (None, expected[0]):
        raise StorageLostError(f"{path} belongs to run {found[0]!s:.80}, this journal to run {expected[0]}: {REMEDY}")
    if found[1] not in (None, expected[1]):
        raise RecordError(f"{path} holds the record of plan {found[1]!s:.80}: no file of the journal may be renamed")


def _void_nonce(data: bytes) -> str:
    """Return a nonce that only these bytes have. Of a file that is too long they are the first ones."""
    return f"void-{hashlib.sha256(data).hexdigest()}"


# -- invariants ------------------------------------------------------------------------------------------------------


def _broken_by_plan(plan: Plan) -> Iterator[str]:
    """Yield the invariants that a plan breaks, as sentences."""
    members = plan.members or ()
    if [member.rank for member in members] != list(range(len(members))):
        yield "the ranks of the members do not count up from 0"
    if len({member.worker for member in members}) != len(members):
        yield "two members are the same worker"
    if plan.checkpoint is not None and (pin := plan.checkpoint.pin) is not None and not is_inside(pin, "pins"):
        yield f"the pin {shortened(pin)} is not below pins/"


def _broken_by_outcome(outcome: Outcome) -> Iterator[str]:
    """Yield the invariants that an outcome breaks."""
    result = outcome.result
    if result is None:
        return
    if outcome.status != OutcomeStatus.SUCCEEDED:
        yield "a failed attempt has a result"
    named = {*result.metrics, *result.classes, *result.data, *result.changed, *result.nonfinite, *result.slices}
    for unknown in sorted(named - result.examples.keys()):
        yield f"the eval set {shortened(unknown)} has no number of examples"
    for folder in result.saves:
        if not is_inside(folder, "evaluations"):
            yield f"the folder {shortened(folder)} of saves is not below evaluations/"
    if sum(map(len, result.metrics.values())) > MOST_METRICS:
        yield f"it has more than {MOST_METRICS} metrics"
    of_classes = [values for by_metric in result.classes.values() for values in by_metric.values()]
    if sum(map(len, of_classes)) > MOST_CLASSES:
        yield f"it has more than {MOST_CLASSES} numbers of classes"
    yield from _broken_by_slices(result)
    if any(not _is_possible(value) for value in _values(result)):
        yield "a number and its exact form (hex) differ"


def _broken_by_slices(result: Result) -> Iterator[str]:
    """Yield the invariants that the slices of a result break."""
    slices = [one for by_slice in result.slices.values() for one in by_slice.values()]
    if len(slices) > MOST_SLICES or sum(len(one.metrics) for one in slices) > MOST_SLICES:
        yield f"it has more than {MOST_SLICES} numbers of slices"
    if any(one.examples < 0 for one in slices):
        yield "a slice has fewer than 0 examples"


def _broken_together(outcome: Outcome, plan: Plan) -> Iterator[str]:
    """Yield the invariants that the outcome of a plan breaks."""
    members = len(plan.members or ())
    if outcome.result is not None and outcome.result.workers != members:
        yield f"the result is of {outcome.result.workers} workers, the plan of {members}"
    yield from _broken_by_outcome(outcome)


def _values(result: Result) -> Iterator[Value]:
    """Yield all numbers of a result."""
    for by_metric in result.metrics.values():
        yield from by_metric.values()
    for by_metric_and_class in result.classes.values():
        for by_class in by_metric_and_class.values():
            yield from by_class.values()
    for by_slice in result.slices.values():
        for one in by_slice.values():
            yield from one.metrics.values()


def _is_possible(value: Value) -> bool:
    """Return whether both forms of a number say the same: the exact one also has NaN and infinity."""
    try:
        exact = float.fromhex(value.hex)
    except (ValueError, OverflowError):
        return False
    return value.value == (exact if math.isfinite(exact) else None)


def is_inside(path: str, folder: str) -> bool:
    """Return whether a path in a record stays below a folder of the state directory."""
    parts = path.split("/")
    return (
        len(parts) > 1
        and parts[0] == folder
        and all(part not in ("", ".", "..") and "\0" not in part for part in parts)
    )
