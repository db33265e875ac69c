"""Read and write the snapshot of a run's journal in shared storage.

A snapshot is a view: without it a daemon reads the journal from its beginning. It is compressed, because it names every
checkpoint of the run. Older releases wrote it under another name, and plain.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import ClassVar, Final

from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.snapshot import Snapshot, encode, restore
from sidecar.coordination.storage import MAX_RECORD_BYTES, Storage
from sidecar.errors import RecordError, StorageError, StorageLostError
from sidecar.protocol.codec import loads
from sidecar.protocol.record_limits import SNAPSHOT, RecordLimits, excess_of_parts
from sidecar.system.bounded_calls import Calls, HangingError, call_directly

PATH: Final = "snapshot.json.gz"
PLAIN_PATH: Final = "snapshot.json"
"""The snapshot of an older release, which is read if there is no other."""

_MOST_BYTES: Final = SNAPSHOT.size
"""The most bytes that a snapshot unpacks to."""

_TOO_LONG: Final = (
    f"{PATH} is not written any more: the run has so many checkpoints that no daemon would read it "
    f"({SNAPSHOT.size} bytes, or {MAX_RECORD_BYTES} compressed). Nothing is lost, but daemons and commands start ever "
    "more slowly: begin a new run with another state directory when that suits you"
)

_GZIP: Final = 31  # the `wbits` of zlib for the format of gzip


@dataclass(frozen=True, slots=True)
class _End:
    """Hold the fields of a snapshot that every release writes, however it folds the journal."""

    LIMITS: ClassVar[RecordLimits] = SNAPSHOT

    run: str
    through: int


def resume(storage: Storage, journal: Journal, calls: Calls = call_directly) -> JournalState | None:
    """Return the state at the snapshot, and move the journal there; None if there is no usable snapshot.

    Raises `StorageLostError` if the journal belongs to another run by now.
    """
    for path in (PATH, PLAIN_PATH):
        if (history := _resume(storage, journal, calls, path)) is not None:
            return history
    return None


def _resume(storage: Storage, journal: Journal, calls: Calls, path: str) -> JournalState | None:
    """Return the state at one snapshot, as `resume`."""
    try:
        data = calls(path, partial(storage.read, path, SNAPSHOT.size))
        if data is None:
            return None
        if path == PATH:
            data = _unpacked(data)
        try:
            snapshot = loads(Snapshot, data)
        except RecordError:
            if (end := loads(_End, data)).run == journal.run:
                journal.expect(end.through, path)  # records are durable before they are folded
            return None
        if snapshot.run != journal.run:
            return None
        journal.expect(snapshot.end.through, path)
        history = restore(snapshot)
        known = journal.resume(snapshot.end.through, snapshot.end.plan_nonce, snapshot.end.outcome_nonce)
    except StorageLostError:
        raise
    except (RecordError, StorageError, HangingError):  # whatever the problem, the journal has all records
        return None
    return history if known else None


def _unpacked(data: bytes) -> bytes:
    """Return the content of a compressed snapshot. Raises `RecordError` if it is damaged, or unpacks to too much."""
    unpacker = zlib.decompressobj(_GZIP)
    try:
        unpacked = unpacker.decompress(data, _MOST_BYTES)
    except zlib.error as error:
        raise RecordError(f"{PATH} is damaged: {error}") from error
    if not unpacker.eof:
        raise RecordError(f"{PATH} is torn, or unpacks to more than {_MOST_BYTES} bytes")
    return unpacked


def write(storage: Storage, snapshot: Snapshot) -> str | None:
    """Write the snapshot, and return why that failed, as a sentence; None if it did not fail.

    A snapshot that is too long for a record is not written. Then daemons that start use the one before.
    """
    packer, packed = zlib.compressobj(wbits=_GZIP), BytesIO()

    def parts() -> Iterator[bytes]:
        for part in encode(snapshot):
            packed.write(packer.compress(part))
            yield part

    if excess_of_parts(parts(), SNAPSHOT) is not None:  # no daemon would read it
        return _TOO_LONG
    packed.write(packer.flush())
    try:
        storage.replace(PATH, packed.getvalue())
    except RecordError:
        return _TOO_LONG
    except StorageError as error:
        return str(error)
    return None
