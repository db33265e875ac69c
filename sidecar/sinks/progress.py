"""Record in the state directory which results a sink has, so that any node's daemon can go on after any other."""

from dataclasses import dataclass

from sidecar.codec import dumps, loads
from sidecar.coordination.storage import Storage
from sidecar.errors import RecordError
from sidecar.records import SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Name the newest evaluation of a run that a sink has taken or refused: its plan and its time.

    `plan` is 0 before the first one.
    """

    run: str
    plan: int = 0
    milliseconds: int = 0
    schema: int = SCHEMA


def read_progress(storage: Storage, sink: str, run: str) -> Progress:
    """Return the progress of a sink in the run with this id. A damaged file counts as none: results come again.

    Raises `StorageError` if storage does not answer.
    """
    data = storage.read(_path(sink))
    if data is None:
        return Progress(run=run)
    try:
        progress = loads(Progress, data)
    except RecordError:
        return Progress(run=run)
    return progress if progress.run == run else Progress(run=run)


def write_progress(storage: Storage, sink: str, progress: Progress) -> None:
    """Replace the progress of a sink. Raises `StorageError` if storage does not answer."""
    storage.replace(_path(sink), dumps(progress))


def _path(sink: str) -> str:
    return f"sinks/{sink}.json"
