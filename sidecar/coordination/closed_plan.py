"""Read one evaluation from the journal by the number of its plan, without reading the journal to there."""

from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.storage import Storage
from sidecar.coordination.unique_names import parse
from sidecar.errors import RecordError
from sidecar.records import Outcome, Plan


def read_success(storage: Storage, number: int) -> Closed | None:
    """Return the successful evaluation of a plan; None if there is no such plan, or if it did not succeed.

    Raises `StorageError` if storage does not answer, and `RecordError` if the records cannot be decoded.
    """
    found = storage.read(plan_path(number)), storage.read(outcome_path(number))
    if found[0] is None or found[1] is None:
        return None
    plan, outcome = parse(Plan, plan_path(number), found[0]), parse(Outcome, outcome_path(number), found[1])
    if plan.plan != number or outcome.plan != number or plan.run != outcome.run:
        raise RecordError(f"the records of plan {number} do not belong together")
    return Closed(plan, outcome) if plan.checkpoint is not None and outcome.result is not None else None
