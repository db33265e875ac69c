"""The messages on the loop's queue: everything that can happen to a daemon."""

from dataclasses import dataclass

from sidecar.daemon.storage_thread import Response
from sidecar.workers.process import Event


class FilesChanged:
    """Something changed in the checkpoint directory, so a scan is due."""


class JournalChanged:
    """Something changed in the journal's folders, so it may have a new record."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM or SIGINT arrived. The first one drains, the second one ends at once."""

    signal: str


Message = Response | tuple[str, Event] | FilesChanged | JournalChanged | Terminate
