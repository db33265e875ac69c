"""Record in the state directory which events a sink has, so that any node's daemon can go on after any other.

A copy is written after each record. It is read only in place of a damaged record: events that waited are then
delivered, and the newest one may come twice. If the record is absent, the sink begins anew, whatever the copy says.
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sidecar.coordination.storage import Storage
from sidecar.errors import NewerSchemaError, RecordError, StorageError
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.record_limits import SMALL
from sidecar.protocol.records import SCHEMA

_MOST_PLANS: Final = 10**12 - 1  # the names of plans have twelve digits
_LAST_MILLISECOND: Final = 253_402_300_799_999  # the end of the year 9999, the last one that timestamps can name


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Name the newest event of a run that a sink has taken or refused: its plan and its time.

    `plan` is 0 before the first one. A plan settles checkpoints when it is opened, and is closed later: `settled` is
    the number of its settlements that were handled while its end was not; None once all of the plan was handled.
    `ended` is the newest plan at the last end of the run that the sink has; None if there was none.
    """

    run: str
    plan: int = 0
    milliseconds: int = 0
    settled: int | None = None
    ended: int | None = None
    schema: int = SCHEMA

    @property
    def position(self) -> tuple[int, int]:
        """Return the place in the journal behind which the next event stands: see `journal_events`."""
        return self.plan, sys.maxsize if self.settled is None else self.settled

    def moved_to(self, position: tuple[int, int]) -> "Progress":
        """Return the progress at another place in the journal."""
        plan, number = position
        return replace(self, plan=plan, settled=None if number == sys.maxsize else number)

    def is_before(self, other: "Progress") -> bool:
        """Return whether another progress in the same run is further."""
        return (*self.position, self.ended or 0) < (*other.position, other.ended or 0)


def read_progress(
    storage: Storage, sink: str, run: str, damaged: Callable[[str, bool], None] | None = None
) -> Progress | None:
    """Return the progress of a sink in the run with this id; None if there is none.

    Of a damaged file, or one with impossible numbers, the copy is read, and `damaged` is called with the path and
    whether the copy is whole. Raises `StorageError` if storage does not answer, and `NewerSchemaError` for the file of
    a newer release, which must not be replaced.
    """
    data = storage.read(_path(sink), SMALL.size)
    if data is None:
        return None
    progress = _parsed(data)
    if progress is None:
        copy = storage.read(_copy_path(sink), SMALL.size)
        progress = None if copy is None else _parsed(copy)
        if damaged is not None:
            damaged(_path(sink), progress is not None and progress.run == run)
    return progress if progress is not None and progress.run == run else None


def _parsed(data: bytes) -> Progress | None:
    """Return a progress; None if it is damaged. Raises `NewerSchemaError`."""
    try:
        progress = loads(Progress, data)
    except NewerSchemaError:
        raise
    except RecordError:
        return None
    return progress if _is_possible(progress) else None


def _is_possible(progress: Progress) -> bool:
    """Return whether the numbers may be true. Others may write the file, and no event would come after 10**30 plans."""
    plans = progress.plan, progress.settled or 0, progress.ended or 0
    return all(0 <= plan <= _MOST_PLANS for plan in plans) and 0 <= progress.milliseconds <= _LAST_MILLISECOND


def write_progress(storage: Storage, sink: str, progress: Progress) -> None:
    """Replace the progress of a sink, durably. Raises `StorageError` if storage does not answer."""
    data = dumps(progress)
    storage.replace(_path(sink), data, survives_crash=True)
    with contextlib.suppress(StorageError):  # the record itself is durable
        storage.replace(_copy_path(sink), data)


def _path(sink: str) -> str:
    return f"sinks/{sink}.json"


def _copy_path(sink: str) -> str:
    return f"sinks/{sink}.copy.json"  # no sink has a name with a dot
