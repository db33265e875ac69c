"""Read and write the shared storage of the run that this daemon has joined: journal, heartbeats, views of results.

The storage thread calls this, and is blocked for as long as the storage is.
"""

import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sidecar.coordination import snapshot_store
from sidecar.coordination.compaction import Compaction
from sidecar.coordination.heartbeats import Heartbeats
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.snapshot import Snapshot
from sidecar.coordination.storage import Storage
from sidecar.coordination.unfinished_writes import UnfinishedWrites
from sidecar.errors import RecordError, StorageError
from sidecar.protocol.records import Outcome, Plan
from sidecar.protocol.states import OutcomeStatus
from sidecar.system.bounded_calls import Calls, HangingError
from sidecar.system.clock import Clock

_MOST_RECORDS: Final = 1000
"""The most records that are read at once. Between the parts of a long journal the loop writes heartbeats."""

_COMPACTION_SECONDS: Final = 0.1
"""The seconds of one step of a compaction, which the other requests of this thread wait for."""

_COMPACTION_PAUSE_SECONDS: Final = 60.0  # after a failure


@dataclass(slots=True, kw_only=True)
class JoinedRun:
    """Read and write the run that this daemon has joined. `views`: makes calls on which no decision depends."""

    storage: Storage
    journal: Journal
    heartbeats: Heartbeats
    unfinished_writes: UnfinishedWrites
    views: Calls
    compaction: Compaction
    _compaction_at: float = float("-inf")  # when a failed compaction is tried again
    _compaction_problem: str | None = None
    _snapshot_problem: str | None = None
    _records: list[Plan | Outcome] = field(default_factory=list)  # read, and not yet part of a response
    _success: Closed | None = None  # the newest, until its view is written

    def read_on(self) -> int:
        """Read new records of the journal, and return their number."""
        plan = self.journal.open
        records = self.journal.read_new(_MOST_RECORDS)
        self._records += records
        for record in records:
            if isinstance(record, Plan):
                plan = record
            elif record.status == OutcomeStatus.SUCCEEDED and plan is not None:
                self._success = Closed(plan, record)
        return len(records)

    def read_more(self) -> bool:
        """Read new records of the journal, and return whether there are more."""
        return self.read_on() == _MOST_RECORDS or not self.journal.reaches_end()

    def take_records(self) -> tuple[Plan | Outcome, ...]:
        """Return the records that were read since the last call."""
        records, self._records = tuple(self._records), []
        return records

    def write_view(self) -> str | None:
        """Write the view of the newest result, and return why that failed; None if it did not fail.

        The node that wrote the result may have died before it wrote the view. The next call tries again after a
        failure.
        """
        if self._success is None:
            return None
        try:
            written = self.views("view", partial(_write_result, self.journal, self._success))
        except (RecordError, StorageError, HangingError) as error:
            return str(error)
        if written is self._success:
            self._success = None
        return None

    def write_snapshot(self, snapshot: Snapshot | None) -> str | None:
        """Write a snapshot for daemons that start, if one is due.

        Return why the newest one could not be written; None if it could.
        """
        if snapshot is not None:
            try:
                self._snapshot_problem = self.views("snapshot", partial(snapshot_store.write, self.storage, snapshot))
            except HangingError as error:
                self._snapshot_problem = str(error)
        return self._snapshot_problem

    def compact(self, closed: int | None, clock: Clock) -> str | None:
        """Move old plans into segments for a moment, and return why that failed; None if it did not.

        `closed`: the plans up to this one are closed; None: another node does it, or a plan is open.
        """
        if closed is None or clock.now() < self._compaction_at or not self.compaction.is_due(closed):
            return self._compaction_problem
        end = clock.now() + _COMPACTION_SECONDS
        try:
            self.views("compact", partial(self.compaction.work, closed, lambda: clock.now() >= end))
            self._compaction_problem = None
        except (RecordError, StorageError, HangingError) as error:
            self._compaction_problem = str(error)
            self._compaction_at = clock.now() + _COMPACTION_PAUSE_SECONDS
        return self._compaction_problem

    def remove_unfinished_writes(self, now: float) -> None:
        """Remove the unfinished files of writers that were killed."""
        storage_time = self.heartbeats.storage_time(now)
        with contextlib.suppress(HangingError):
            self.views("sweep", partial(self.unfinished_writes.sweep, now, storage_time))


def _write_result(journal: Journal, success: Closed) -> Closed:
    """Write the view of a success, and return that success, because a call may end late."""
    journal.write_result(success)
    return success
