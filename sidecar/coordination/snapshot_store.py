"""The snapshot of a run's journal in shared storage: read at the start, written now and then.

It is a view, and nothing rests on it: without it the journal is read from its beginning.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

from sidecar.bounded_calls import Calls, HangingError, call_directly
from sidecar.codec import dumps, loads
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.snapshot import Snapshot, restore
from sidecar.coordination.storage import Storage
from sidecar.errors import RecordError, StorageError, StorageLostError

PATH: Final = "snapshot.json"


@dataclass(frozen=True, slots=True)
class _End:
    """How far a snapshot goes: as every release writes it, however it folds the journal."""

    run: str
    through: int


def resume(storage: Storage, journal: Journal, calls: Calls = call_directly) -> JournalState | None:
    """The history up to the snapshot, from where the journal is then read on; None if there is none to be believed.

    One that cannot be read is none. Raises `StorageLostError` if the journal is that of another run by now.
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
        known = journal.resume(snapshot.through, snapshot.plan_nonce, snapshot.outcome_nonce)
    except StorageLostError:
        raise
    except (
        RecordError,
        StorageError,
        HangingError,
    ):  # torn by a crash, of another version, or a folder: the journal has it all
        return None
    return history if known else None


def write(storage: Storage, snapshot: Snapshot) -> str | None:
    """Put it where daemons look that start; returns why it could not be written, as a sentence.

    One that is too long to be a record is not written: starts then read on from the one before.
    """
    try:
        data = dumps(snapshot)
        storage.replace(PATH, data)
    except RecordError:
        return None
    except StorageError as error:
        return str(error)
    return None
