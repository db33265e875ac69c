"""Remove unfinished writes that killed daemons left in the folders of a run, once they are a day old.

The daemon's storage thread calls this module. One call handles one folder, since a long run has thousands of folders
and heartbeats must not wait for them.
"""

from typing import Final

from sidecar.coordination.storage import Storage
from sidecar.errors import RecordError, StorageError

_OLD_SECONDS: Final = 86400.0  # a daemon that has written for a day is not coming back
_AGAIN_SECONDS: Final = 86400.0
_FOLDERS: Final = ("", "members", "plans", "outcomes", "segments", "evaluations", "sinks")


class UnfinishedWrites:
    """Sweep the folders of one run in turn, each once a day, `evaluations` with every folder in it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._due: list[str] = []
        self._next = float("-inf")

    def sweep(self, now: float, storage_time: float | None) -> None:
        """Sweep the next folder if one is due.

        `storage_time` is the time of the storage's clock; `None` if it is not known. If storage gives an error, nothing
        is removed, and the folder is swept again a day later.
        """
        if storage_time is None or (not self._due and now < self._next):
            return
        try:
            if not self._due:
                self._next = now + _AGAIN_SECONDS
                self._due = [*(f"evaluations/{name}" for name in self._storage.names("evaluations")), *_FOLDERS]
            self._storage.sweep(self._due.pop(), storage_time - _OLD_SECONDS)
        except (RecordError, StorageError):
            return
