"""The identity of a run: `run.json` in its state directory, which the first daemon creates.

Every record of the run carries its id, so that no record of one run is taken for another's. `state_directory` decides
to which checkpoint directory a run belongs.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sidecar.clock import timestamp
from sidecar.codec import dumps
from sidecar.coordination.storage import Storage
from sidecar.coordination.unique_names import GracePeriod, parse, settle
from sidecar.errors import StateUnavailableError, StorageLostError
from sidecar.records import SCHEMA

RUN_PATH: Final = "run.json"
JOURNAL_FOLDERS: Final = ("plans", "outcomes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The identity of a state directory. `checkpoint_dir` is the absolute path by which its creator knew that."""

    run: str
    nonce: str
    created_at: str | None = None
    checkpoint_dir: str | None = None  # null: written by an older release
    schema: int = SCHEMA


def open_run(
    storage: Storage,
    wall: float,
    *,
    checkpoint_dir: str | None = None,
    grace: GracePeriod | None = None,
    new_id: Callable[[], str] = lambda: secrets.token_hex(16),
) -> str:
    """Return the id of the run whose state directory this is; the first daemon to ask creates it.

    `wall` is the time of creation, in seconds since 1970-01-01 UTC, for people to read. Raises `StorageError` if
    storage does not answer, `RecordError` if what stands there is no run, `StorageLostError` if there is a journal
    without the run that it belongs to.
    """
    grace = grace or GracePeriod()
    data = storage.read(RUN_PATH)
    if data is None:
        with grace.on(RUN_PATH):
            _reject_orphans(storage)
        data = settle(
            storage,
            RUN_PATH,
            dumps(Run(run=new_id(), nonce=new_id(), created_at=timestamp(wall), checkpoint_dir=checkpoint_dir)),
        )
    storage.sync("")  # its creator may not have come to that
    if storage.read(RUN_PATH) != data:
        raise StateUnavailableError(f"{RUN_PATH} is gone again, as if storage had crashed: it is asked for again")
    with grace.on(RUN_PATH):
        return parse(Run, RUN_PATH, data).run


def find_run(storage: Storage, grace: GracePeriod | None = None) -> Run | None:
    """Return what `run.json` says; None if it is not there. Raises as `open_run`."""
    data = storage.read(RUN_PATH)
    if data is None:
        return None
    with (grace or GracePeriod()).on(RUN_PATH):
        return parse(Run, RUN_PATH, data)


def read_run(storage: Storage, grace: GracePeriod | None = None) -> str | None:
    """Return the id of the run whose state directory this is; None if no daemon was there yet."""
    found = find_run(storage, grace)
    return None if found is None else found.run


def check_run(storage: Storage, run: str, grace: GracePeriod | None = None) -> None:
    """Raise `StateUnavailableError` if the state directory is not that of `run`, now."""
    found = find_run(storage, grace)
    if found is None:
        raise StateUnavailableError(
            f"{RUN_PATH} is gone from the state directory: it was deleted or unmounted under run {run}"
        )
    if found.run != run:
        raise StateUnavailableError(
            f"{RUN_PATH} belongs to run {found.run}, this program to run {run}: the state directory was replaced"
        )


def _reject_orphans(storage: Storage) -> None:
    """Refuse to begin a run in a folder that holds records of another one: both would use the same names."""
    for folder in JOURNAL_FOLDERS:
        if (names := storage.names(folder)) and storage.read(RUN_PATH) is None:  # it may have begun just now
            raise StorageLostError(
                f"{RUN_PATH} is missing, but {folder}/{names[0]} stands there: put {RUN_PATH} back, "
                "or move the state directory away to begin a new run"
            )
