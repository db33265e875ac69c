"""Read the entries of a run for `history` and `export`, in short steps, so that a long run takes little memory.

Storage is asked in a thread of its own, and what it answered is folded here. So only the silence of storage counts
against `storage_timeout_seconds`, and Ctrl-C ends the command between two steps at the latest.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Final

from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.coordination import snapshot_store
from sidecar.coordination.compaction import single_files
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import Entry, EntryLog, JournalState
from sidecar.coordination.run import read_run
from sidecar.coordination.snapshot import RECENT
from sidecar.coordination.storage import Storage
from sidecar.protocol.records import Outcome, Plan
from sidecar.publishing.history_filter import HistoryFilter

Progress = Callable[[], AbstractContextManager[Callable[[int, int], None]]]
"""Show people how far the journal was read: the number of a plan, and that of the last one, or 0 if none is known."""

_STEP: Final = 100  # records between two reports
_BACK: Final = 250  # plans that are read before those that are known


class RunHistory:
    """Yield the entries of a run, and hold the state that follows from all of them in `state`.

    Raises as `Journal` and `StorageTimeout.call`.
    """

    def __init__(self, storage: Storage, timeout: StorageTimeout, progress: Progress) -> None:
        self.storage = storage
        self.timeout = timeout
        self.progress = progress
        self.state = JournalState()

    def chosen(self, wanted: HistoryFilter) -> Iterator[Entry]:
        """Yield the entries that were asked for, oldest first. `state` is complete once they end."""
        if wanted.newest is None:
            yield from wanted.apply(self.oldest_first())
            return
        yield from reversed(list(islice(wanted.apply(self.newest_first()), wanted.newest)))

    def oldest_first(self) -> Iterator[Entry]:
        """Yield all entries in the order of the journal, and fold it meanwhile."""
        self.state = JournalState(log=EntryLog(keep=1))
        if (run := self.timeout.call(lambda: read_run(self.storage))) is None:
            return
        with self.progress() as report:
            last = max(self.timeout.call(lambda: single_files(self.storage))[0], default=0)
            journal = Journal(self.storage, run)
            for record in self._to_end(journal):
                report(record.plan, last)
                yield from self.state.apply(record)

    def newest_first(self) -> Iterator[Entry]:
        """Yield all entries, the newest first: those behind the snapshot, and further back only as far as asked."""
        if (run := self.timeout.call(lambda: read_run(self.storage))) is None:
            return
        journal = Journal(self.storage, run)
        found = self.timeout.call(lambda: snapshot_store.resume(self.storage, journal))
        self.state = found or JournalState(log=EntryLog(keep=RECENT))
        with self.progress() as report:
            last = max(self.timeout.call(lambda: single_files(self.storage))[0], default=0)
            for record in self._to_end(journal):
                report(record.plan, last)
                self.state.apply(record)
            newest = list(self.state.entries)
            end = 0 if len(newest) == self.state.log.count else newest[0].plan.plan
            # The log may have forgotten some entries of the oldest plan that it knows: these are read again below.
            yield from reversed([entry for entry in newest if entry.plan.plan > end])
            while end > 0:
                first = max(1, end - _BACK + 1)
                report(first, 0)
                yield from reversed(list(self._between(Journal(self.storage, run), first, end)))
                end = first - 1

    def _to_end(self, journal: Journal) -> Iterator[Plan | Outcome]:
        """Yield the records up to the end of the journal. Storage is asked for some at a time."""
        records = journal.read_to_end()
        while step := self.timeout.call(lambda: list(islice(records, _STEP))):
            yield from step

    def _between(self, journal: Journal, first: int, last: int) -> Iterator[Entry]:
        """Yield the entries of closed plans, folded without what was before: that does not change them."""
        state = JournalState(through=first - 1, ordinals=self.state.ordinals)
        journal.skip_to(first)
        while step := self.timeout.call(lambda: journal.read_new(_STEP)):
            for record in step:
                if record.plan > last:
                    return
                yield from state.apply(record)
