"""Read a batch of an eval set again, to notice that its content changed. Imports no framework."""

import time
from collections.abc import Callable
from typing import Final, cast

from sidecar.evaluation.data.batch_source import Batch, BatchSource, ListedSource
from sidecar.evaluation.data.listed import ListedSet

_SHARE: Final = 0.02
"""The share of the time of evaluations for reading batches again."""


class SampleCheck:
    """Compare a batch with its first reading: the first one of the set or, if batches are listed, one of their sample.

    Args:
        source: Opens the data. The first batch is read at once.
        digest_of: Returns the digest of the content of a batch.

    Attributes:
        first: Digest of the first batch; None if there is none.
    """

    def __init__(self, source: BatchSource, digest_of: Callable[[Batch], bytes]) -> None:
        self._source, self._digest_of = source, digest_of
        self._cost_seconds = self._credit_seconds = 0.0
        self._turn = 0
        self.first = self._timed(source.sample)

    def earn(self, seconds: float) -> None:
        """Note how long an evaluation took. A fiftieth of that may be spent."""
        self._credit_seconds += _SHARE * seconds

    def differs(self, listed: ListedSet | None) -> bool:
        """Return whether a batch differs, another one at each call if batches are listed; False while it costs more.

        A set that divides itself has no sample that could be compared.
        """
        if self.first is None or self._source.sharding == "own" or self._cost_seconds > self._credit_seconds:
            return False
        self._credit_seconds = 0.0
        if listed is None:
            return self._timed(self._source.sample) != self.first
        number = sorted(listed.digests)[self._turn % len(listed.digests)]
        self._turn += 1
        chosen = cast("ListedSource", self._source).chosen([number])
        return self._timed(lambda: next(chosen, None)) != listed.digests[number]

    def _timed(self, read: Callable[[], Batch | None]) -> bytes | None:
        """Return the digest of what is read, and note what that costs."""
        began = time.monotonic()
        batch = read()
        digest = None if batch is None else self._digest_of(batch)
        self._cost_seconds = time.monotonic() - began
        return digest
