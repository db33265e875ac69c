"""Create and read `run.json`, the identity of a run, which the first daemon creates in the state directory.

Every record holds the id of its run, so that records of two runs cannot be mixed up. `state_directory` decides which
checkpoint directory a run belongs to.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sidecar.coordination.storage import Storage
from sidecar.coordination.unique_names import GracePeriod, create_and_read, parse
from sidecar.errors import NewerSchemaError, RecordError, StateUnavailableError, StorageLostError
from sidecar.protocol.codec import dumps
from sidecar.protocol.record_limits import SMALL
from sidecar.protocol.records import SCHEMA
from sidecar.system.clock import timestamp

RUN_PATH: Final = "run.json"
JOURNAL_FOLDERS: Final = ("plans", "outcomes")
SEGMENTS: Final = "segments"
_PUT_BACK: Final = "put it back, or move the state directory away to begin a new run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Identify a run. `checkpoint_dir` is an absolute path on the node that created the run."""

    run: str
    nonce: str
    created_at: str | None = None
    checkpoint_dir: str | None = None  # None: written by an older release
    schema: int = SCHEMA


def open_run(
    storage: Storage,
    wall: float,
    *,
    checkpoint_dir: str | None = None,
    grace: GracePeriod | None = None,
    new_id: Callable[[], str] = lambda: secrets.token_hex(16),
) -> str:
    """Return the id of the run in a state directory; create the run if there is none.

    `wall` is the time of creation for people, in seconds since 1970-01-01 UTC. Raises `StorageError` if storage does
    not answer, `RecordError` if `run.json` is not the record of a run, and `StorageLostError` if there is a journal
    without its run.
    """
    grace = grace or GracePeriod()
    data = storage.read(RUN_PATH, SMALL.size)
    if data is None:
        with grace.on(RUN_PATH):
            _reject_orphans(storage)
        data = create_and_read(
            storage,
            RUN_PATH,
            dumps(Run(run=new_id(), nonce=new_id(), created_at=timestamp(wall), checkpoint_dir=checkpoint_dir)),
            SMALL.size,
        )
    storage.sync("")  # the creator may not have done that yet
    if storage.read(RUN_PATH, SMALL.size) != data:
        raise StateUnavailableError(f"{RUN_PATH} is gone again, as if storage had crashed: it is read again")
    with grace.on(RUN_PATH):
        return _parsed(data).run


def find_run(storage: Storage, grace: GracePeriod | None = None) -> Run | None:
    """Return the run in a state directory; `None` if there is none. Raises as `open_run`."""
    data = storage.read(RUN_PATH, SMALL.size)
    if data is None:
        return None
    with (grace or GracePeriod()).on(RUN_PATH):
        return _parsed(data)


def read_run(storage: Storage, grace: GracePeriod | None = None) -> str | None:
    """Return the id of the run in a state directory; `None` if there is none. Raises as `open_run`."""
    found = find_run(storage, grace)
    return None if found is None else found.run


def check_run(storage: Storage, run: str, grace: GracePeriod | None = None) -> None:
    """Check that a state directory still holds `run`; raise `StateUnavailableError` if not."""
    found = find_run(storage, grace)
    if found is None:
        raise StateUnavailableError(
            f"{RUN_PATH} is gone from the state directory: it was deleted or unmounted under run {run}"
        )
    if found.run != run:
        raise StateUnavailableError(
            f"{RUN_PATH} belongs to run {found.run}, this program to run {run}: the state directory was replaced"
        )


def _parsed(data: bytes) -> Run:
    try:
        return parse(Run, RUN_PATH, data)
    except NewerSchemaError:
        raise
    except RecordError as error:
        raise RecordError(f"{error}; {_PUT_BACK}") from error


def _reject_orphans(storage: Storage) -> None:
    """Raise if a run is to begin in a folder with records of another run: both would use the same names."""
    for folder in (*JOURNAL_FOLDERS, SEGMENTS):
        # Another daemon may have created the run after the first reading of `run.json`, so it is read again.
        if (names := storage.names(folder)) and storage.read(RUN_PATH, SMALL.size) is None:
            raise StorageLostError(f"{RUN_PATH} is missing, but {folder}/{names[0]} exists: {_PUT_BACK}")
