"""Create files that never change, read them back, and decode them.

`run.json`, plans and outcomes are such files. The reply to a creation proves nothing; only the content that is read
back counts. One impossible reading proves nothing either, since storage may hide a file, or a part of it, for a moment.
"""

import contextlib
from collections.abc import Iterator
from typing import Final, TypeVar

from sidecar.coordination.storage import Storage
from sidecar.errors import (
    NewerSchemaError,
    RecordError,
    StateUnavailableError,
    StorageError,
    StorageLostError,
    VoidRecordError,
)
from sidecar.protocol.codec import loads
from sidecar.system.clock import Clock, SystemClock

_TRIES: Final = 3
"""The number of attempts at a creation with an unknown result, without pauses, because the daemon tries again later."""

_LONGEST_GAP: Final = 10
"""Two impossible readings belong together if so many grace periods at most lie between them."""

T = TypeVar("T")


class GracePeriod:
    """Decide after which time an impossible reading is final: a torn record, or a missing one.

    Some subjects are read rarely, such as the neighbour of a record that this daemon creates. Two impossible readings
    that are far apart are two moments, and prove as little as one.

    `seconds`: visibility_seconds in a daemon, which tries again by itself; 0 in a command, which reports at once.
    """

    def __init__(self, seconds: float = 0.0, clock: Clock | None = None) -> None:
        self.seconds = seconds
        self._clock = clock or SystemClock()
        self._since: dict[str, tuple[float, float]] = {}  # subject: when the first and last impossible readings were

    @contextlib.contextmanager
    def on(self, subject: str) -> Iterator[None]:
        """Turn an error about `subject` into a temporary one, until it has lasted for the whole period.

        A record of a newer schema is not impossible, so its error is raised unchanged.
        """
        try:
            yield
        except NewerSchemaError:
            raise
        except (RecordError, StorageLostError) as error:
            now = self._clock.now()
            since, last = self._since.get(subject, (now, now))
            since = since if now - last <= _LONGEST_GAP * self.seconds else now
            self._since[subject] = since, now
            if now - since >= self.seconds:
                raise
            raise StateUnavailableError(
                f"{error} (it is read again for {self.seconds:g} s, visibility_seconds, before this is final)"
            ) from error
        self._since.pop(subject, None)


def create_and_read(storage: Storage, path: str, data: bytes, limit: int | None = None) -> bytes:
    """Create a file, and return its content: these bytes, or those of the daemon that created it first.

    `limit`: as in `Storage.read`.
    Replies get lost, so the reply to a creation proves nothing. Only a file that is still absent is created again.
    Raises `StorageError` if it stays unknown whether the file exists.
    """
    last_error: StorageError | None = None
    for _ in range(_TRIES):
        try:
            storage.create(path, data)
        except StorageError as error:
            last_error = error
        try:
            found = storage.read(path, limit)
        except StorageError as error:
            last_error = error
        else:
            if found is not None:
                return found
    raise last_error or StorageError(
        f"{path} was created {_TRIES} times and is still absent: `sidecar check` tests storage"
    )


def parse(cls: type[T], path: str, data: bytes) -> T:
    """Return the record in `data`. Raises `RecordError` with the path of the file if it cannot be decoded."""
    try:
        return loads(cls, data)
    except VoidRecordError as error:
        raise VoidRecordError(f"{path}: {error}", error.run, error.plan) from error
    except RecordError as error:
        raise type(error)(f"{path}: {error}") from error
