"""Read and write the snapshot of a run's journal in shared storage.

A snapshot is a view: without it a daemon reads the journal from its beginning.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

from sidecar.bounded_calls import Calls, HangingError, call_directly
from sidecar.codec import loads
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.snapshot import Snapshot, encode, restore
from sidecar.coordination.storage import Storage
from sidecar.errors import RecordError, StorageError, StorageLostError

PATH: Final = "snapshot.json"


@dataclass(frozen=True, slots=True)
class _End:
    """Hold the fields of a snapshot that every release writes, however it folds the journal."""

    run: str
    through: int


def resume(storage: Storage, journal: Journal, calls: Calls = call_directly) -> JournalState | None:
    """Return the state at the snapshot, and move the journal there; None if there is no usable snapshot.

    Raises `StorageLostError` if the journal belongs to another run by now.
    """
    try:
        data = calls(PATH, partial(storage.read, PATH))
        if data is None:
            return None
        end = loads(_End, data)
        if end.run != journal.run:
            return None
        journal.expect(end.through, PATH)  # records are durable before they are folded
        snapshot = loads(Snapshot, data)
        history = restore(snapshot)
        known = journal.resume(snapshot.end.through, snapshot.end.plan_nonce, snapshot.end.outcome_nonce)
    except StorageLostError:
        raise
    except (RecordError, StorageError, HangingError):  # whatever the problem, the journal has all records
        return None
    return history if known else None


def write(storage: Storage, snapshot: Snapshot) -> str | None:
    """Write the snapshot, and return why that failed, as a sentence; None if it did not fail.

    A snapshot that is too long for a record is not written. Then daemons that start use the one before.
    """
    try:
        data = encode(snapshot)
        storage.replace(PATH, data)
    except RecordError:
        return None
    except StorageError as error:
        return str(error)
    return None
