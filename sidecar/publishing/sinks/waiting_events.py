"""Hold the events that a sink does not have yet, so that neither a retry nor a new entry reads the whole journal."""

from collections.abc import Callable, Sequence
from typing import Final

from sidecar.coordination.journal_state import Entry
from sidecar.coordination.storage import Storage
from sidecar.publishing.sinks.journal_events import Place, is_taken, placed, stored_entries

MOST: Final = 1000  # events in memory, a few megabytes; the journal is read once for so many

PlacedEntry = tuple[Place, Entry]


class WaitingEvents:
    """Find the events behind a place of the journal, oldest first. Only the first `MOST` are in memory.

    Args:
        storage: The state directory of the run.
        takes: The classes of the events.
    """

    def __init__(self, storage: Storage, takes: frozenset[type]) -> None:
        self.more = 0
        """Number of events behind those that `after` returned."""
        self._storage, self._takes = storage, takes
        self._events: list[PlacedEntry] = []
        self._counted: Place | None = None  # all events up to here are in `_events` or `more`

    def after(self, position: Place, since: Callable[[Place], Sequence[Entry] | None]) -> Sequence[PlacedEntry]:
        """Return the first events behind a place that is never before an earlier one; none if there is no event.

        `since` returns the newest entries of the journal, or None if they do not hold all that is behind a place. Then
        the journal is read from storage. Raises as `stored_entries`.
        """
        waiting = [event for event in self._events if event[0] > position]
        counted, more = self._counted, self.more
        if counted is None or (more and not waiting):
            counted, more = position, 0
        known = since(counted)
        for place, entry in placed(stored_entries(self._storage) if known is None else known):
            if place <= counted:
                continue
            counted = place
            if not is_taken(entry, self._takes):
                continue
            if more or len(waiting) == MOST:
                more += 1
            else:
                waiting.append((place, entry))
        self._events, self.more, self._counted = waiting, more, counted
        return waiting
