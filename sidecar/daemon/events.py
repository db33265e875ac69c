"""Define the messages on the loop's queue: all events that a daemon reacts to."""

from dataclasses import dataclass

from sidecar.daemon.storage_thread import Response
from sidecar.daemon.workers.process import Event


class FilesChanged:
    """Report a change in the checkpoint directory, so that a scan is due."""


class SaveNoticed:
    """Report that training says it saved a checkpoint, so that a scan is due, whatever file events reported."""


class JournalChanged:
    """Report a change in the journal's folders, which may be a new record."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Report SIGTERM or SIGINT. The first one drains, the second one ends the daemon at once."""

    signal: str


Message = Response | tuple[str, Event] | FilesChanged | SaveNoticed | JournalChanged | Terminate
