"""Read one evaluation from the journal by the number of its plan, without reading the journal to there."""

from sidecar.coordination.journal_records import (
    OUTCOME_BYTES,
    PLAN_BYTES,
    decode_outcome,
    decode_plan,
    outcome_path,
    plan_path,
)
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.segments import Segments, is_marker
from sidecar.coordination.storage import Storage


def read_success(storage: Storage, number: int) -> Closed | None:
    """Return the successful evaluation of a plan; None if there is no such plan, or if it did not succeed.

    Raises as `read_closed`.
    """
    closed = read_closed(storage, number)
    if closed is None or closed.plan.checkpoint is None or closed.outcome.result is None:
        return None
    return closed


def read_closed(storage: Storage, number: int, run: str | None = None) -> Closed | None:
    """Return a plan and its outcome; None if there is no such plan, or if it has no outcome.

    `run`: the run that both must belong to; None: any. Raises `StorageError` if storage does not answer or a segment is
    missing, `RecordError` or `StorageLostError` if the records are damaged or do not belong together.
    """
    found = storage.read(plan_path(number), PLAN_BYTES), storage.read(outcome_path(number), OUTCOME_BYTES)
    segments = Segments(storage, None)
    segments.advance(sync=True)  # after the single files were read: they may be late creations of a suspended daemon
    where = ""
    if segments.covers(number):
        found, where = segments.read(number), f"{segments.place(number)}: "
    if found[0] is None or found[1] is None or is_marker(found[0]):
        return None
    plan = decode_plan(found[0], number, run, where)
    return None if plan.void is not None else Closed(plan, decode_outcome(found[1], plan, where))


def has_plan(storage: Storage, number: int) -> bool:
    """Return whether the journal has a plan. Raises as `read_closed`."""
    if storage.read(plan_path(number), 0) is not None:
        return True
    segments = Segments(storage, None)
    segments.advance(sync=True)
    return segments.covers(number)
