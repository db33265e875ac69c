"""Read the heartbeats and the journal of one run for a command that only reads. Each record is read once."""

from typing import Self

from sidecar.commands.observed_nodes import ObservedNodes
from sidecar.coordination import snapshot_store
from sidecar.coordination.heartbeats import Heartbeats
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.storage import Storage


class RunReader:
    """Hold what was read of one run so far. Every method may block for as long as the storage does.

    Args:
        run_id: The run's id.
        journal: The run's journal, read up to `history`.
        heartbeats: The heartbeats of the run's nodes.
        history: The state of the journal.
    """

    def __init__(self, run_id: str, journal: Journal, heartbeats: Heartbeats, history: JournalState) -> None:
        self.run_id = run_id
        self.history = history
        self.nodes = ObservedNodes()
        self.unread: dict[str, str] = {}  # node: why its file gave no heartbeat
        self._journal = journal
        self._heartbeats = heartbeats

    @classmethod
    def begin(cls, storage: Storage, run_id: str) -> Self:
        """Begin to read a run, from its snapshot if there is one. Raises `StorageError` if storage does not answer."""
        journal = Journal(storage, run_id)
        history = snapshot_store.resume(storage, journal) or JournalState()
        return cls(run_id, journal, Heartbeats(storage, run_id), history)

    def read_heartbeats(self, now: float) -> None:
        """Read all heartbeats; `now` is the time of the reader's clock."""
        reading = self._heartbeats.read_all()
        self.unread = reading.unread
        self.nodes.update(reading, now)

    def read_journal(self) -> None:
        """Read the journal on to its end."""
        for record in self._journal.read_to_end():
            self.history.apply(record)

    def task(self, lease_seconds: float) -> str | None:
        """Return the task whose settlements count: that of a live node, else of a node that was there."""
        with_task = [observed for observed in self.nodes if observed.heartbeat.task is not None]
        alive = [observed for observed in with_task if observed.fresh(lease_seconds)]
        return next((observed.heartbeat.task for observed in (*alive, *with_task)), None)
