"""Read one evaluation from the journal by the number of its plan, without reading the journal to there."""

from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.segments import Segments, is_marker
from sidecar.coordination.storage import Storage
from sidecar.coordination.unique_names import parse
from sidecar.errors import RecordError
from sidecar.records import Outcome, Plan


def read_success(storage: Storage, number: int) -> Closed | None:
    """Return the successful evaluation of a plan; None if there is no such plan, or if it did not succeed.

    Raises as `read_closed`.
    """
    closed = read_closed(storage, number)
    if closed is None or closed.plan.checkpoint is None or closed.outcome.result is None:
        return None
    return closed


def read_closed(storage: Storage, number: int) -> Closed | None:
    """Return a plan and its outcome; None if there is no such plan, or if it has no outcome.

    Raises `StorageError` if storage does not answer or a segment is missing, and `RecordError` if the records cannot be
    decoded.
    """
    found = storage.read(plan_path(number)), storage.read(outcome_path(number))
    segments = Segments(storage, None)
    segments.advance(sync=True)  # after the single files were read: they may be late creations of a suspended daemon
    where = ""
    if segments.covers(number):
        found, where = segments.read(number), f"{segments.place(number)}: "
    if found[0] is None or found[1] is None or is_marker(found[0]):
        return None
    plan = parse(Plan, f"{where}{plan_path(number)}", found[0])
    outcome = parse(Outcome, f"{where}{outcome_path(number)}", found[1])
    if plan.plan != number or outcome.plan != number or plan.run != outcome.run:
        raise RecordError(f"the records of plan {number} do not belong together")
    return Closed(plan, outcome)


def has_plan(storage: Storage, number: int) -> bool:
    """Return whether the journal has a plan. Raises as `read_closed`."""
    if storage.read(plan_path(number)) is not None:
        return True
    segments = Segments(storage, None)
    segments.advance(sync=True)
    return segments.covers(number)
