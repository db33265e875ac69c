"""Names that are created once and never change: create one, read back what stands there, understand it.

`run.json`, plans and outcomes are such names. Nothing is concluded from how a creation ended, only from what stands
there afterwards; and nothing is concluded for good from one reading that cannot be true, since storage may show a file
short, or not at all, for a moment.
"""

import contextlib
from collections.abc import Iterator
from typing import Final, TypeVar

from sidecar.clock import Clock, SystemClock
from sidecar.codec import loads
from sidecar.coordination.storage import Storage
from sidecar.errors import NewerSchemaError, RecordError, StateUnavailableError, StorageError, StorageLostError

_TRIES: Final = 3
"""How often a name whose fate is unknown is created again; without a pause, since the daemon asks again later."""

T = TypeVar("T")


class GracePeriod:
    """The time that storage has to take back what cannot be true: a torn record, a record that is missing.

    `seconds` is visibility_seconds in a daemon, which asks again by itself, and 0 in a command, which says what it
    found at once.
    """

    def __init__(self, seconds: float = 0.0, clock: Clock | None = None) -> None:
        self.seconds = seconds
        self._clock = clock or SystemClock()
        self._since: dict[str, float] = {}  # by what cannot be true

    @contextlib.contextmanager
    def on(self, subject: str) -> Iterator[None]:
        """Raise an error about `subject` as one that may pass, until it has lasted for the whole period.

        A record of a newer schema is true: its error is raised as it is.
        """
        try:
            yield
        except NewerSchemaError:
            raise
        except (RecordError, StorageLostError) as error:
            now = self._clock.now()
            if now - self._since.setdefault(subject, now) >= self.seconds:
                raise
            raise StateUnavailableError(
                f"{error} (it is read again for {self.seconds:g} s, visibility_seconds, before this is final)"
            ) from error
        self._since.pop(subject, None)


def settle(storage: Storage, path: str, data: bytes) -> bytes:
    """Create a name and return what stands under it then: these bytes or another's.

    Nothing is concluded from how the creation ended, since replies get lost; only a name that is still absent is
    created again. Raises `StorageError` if its fate stays unknown.
    """
    unknown: StorageError | None = None
    for _ in range(_TRIES):
        try:
            storage.create(path, data)
        except StorageError as error:
            unknown = error
        try:
            found = storage.read(path)
        except StorageError as error:
            unknown = error
        else:
            if found is not None:
                return found
    raise unknown or StorageError(
        f"{path} was created {_TRIES} times and is still absent: `sidecar check` tests storage"
    )


def parse(cls: type[T], path: str, data: bytes) -> T:
    """Read a record; its `RecordError` names the file."""
    try:
        return loads(cls, data)
    except RecordError as error:
        raise type(error)(f"{path}: {error}") from error
