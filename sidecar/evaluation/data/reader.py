"""Read eval sets as streams of whole batches: once in full with a fingerprint, then only a rank's own batches.

Batch b belongs to rank b mod n, so a batch holds the same examples whatever the number of workers, and results are
equal to the bit. That needs every rank to see the same stream: the fingerprint proves it. No framework is known here.
"""

import hashlib
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Final

from sidecar.evaluation.backend import Stream, Tick
from sidecar.evaluation.data.batch_source import Batch, BatchSource
from sidecar.evaluation.data.cache import Cache, CacheBudget
from sidecar.evaluation.data.digest import digest_of
from sidecar.evaluation.data.elements import placed
from sidecar.evaluation.data.nonfinite import Finds
from sidecar.evaluation.data.shard import Shard, all_to_first
from sidecar.evaluation.failures import EvaluationError, following_from_code
from sidecar.evaluation.task import EvalSet

_ORDER_ADVICE: Final = (
    "shuffle with a seed and reshuffle_each_iteration=False or not at all, list files with shuffle=False, and let a "
    "generator start anew whenever its function is called"
)


class EvalSetReader:
    """One eval set on one rank.

    Args:
        name: Of the eval set.
        eval_set: What the task says about it.
        source: Opens the data.
        shard: Which rank this is, of how many.
        budget: Bytes of batches that may stay in memory.

    Raises:
        EvaluationError: the eval set is empty.
    """

    def __init__(self, name: str, eval_set: EvalSet, source: BatchSource, *, shard: Shard, budget: CacheBudget) -> None:
        self.name = name
        self._eval_set, self._source, self._shard = eval_set, source, shard
        sample = source.sample()
        if sample is None and source.sharding != "own":
            raise EvaluationError("task_error", f"eval set {name!r} is empty: it has no example to evaluate")
        self._sample_digest = None if sample is None else self._digest(sample)
        self._stream: Stream | None = None
        self._own_digest = b""
        self._places: list[tuple[int, int | None]] = []  # of own batches: number and first example in the whole set
        self._cache = Cache(budget, source.arrays)
        self._check: Callable[[int, int], None] | None = None
        self.nonfinite = Finds()
        self._searched = False  # for numbers that are not finite

    def leave_to_first(self, check: Callable[[int, int], None]) -> None:
        """Let rank 0 evaluate all batches in turn, and the other ranks none.

        `check` is called with number and size of each batch that is read, and raises `EvaluationError` for one that
        cannot be evaluated so.
        """
        self._check, self._shard = check, all_to_first(self._shard)
        self._source.leave_to_first()

    def read(self, tick: Tick) -> Stream:
        """Read the whole stream once, fingerprint it, and keep this rank's own batches if there is memory for them."""
        if self._source.sharding == "batches":
            self._stream = self._stream or self._read_all(tick)
            return self._stream
        stream = self._trust()
        if self._stream not in (None, stream):
            raise self._has_changed()
        self._stream = stream
        return stream

    @property
    def examples(self) -> int | None:
        """How many examples all ranks have together, once read; None if only the end will tell."""
        return None if self._stream is None or self._stream.sharding != "batches" else self._stream.examples

    def own(self) -> Iterator[tuple[int, int | None, Batch]]:
        """Yield this rank's own batches in order, each after its number and the place of its first example in the set.

        Where the place is not known it is None, and the number says nothing. Fills `nonfinite`, once if later
        evaluations see the same data. Raises `EvaluationError` (`stream_differs`) if the batches are no longer those
        that were read.
        """
        places: Iterator[tuple[int, int | None]] = repeat((0, None)) if self.examples is None else iter(self._places)
        searches = not self._searched
        if searches:
            self.nonfinite = Finds()
        for batch in self._own():
            try:
                number, first = next(places)
            except StopIteration:
                raise self._has_changed() from None
            if searches:
                self._search(batch, number, first)
            yield number, first, batch
        self._searched = self._cache.complete or self._is_compared

    def digest(self, batch: Batch) -> bytes:
        """Return the digest of everything that a batch holds."""
        return self._digest(batch)

    def examples_in(self, batch: Batch) -> int:
        """Return the number of examples in a batch."""
        return self._source.examples_in(batch)

    def _digest(self, batch: Batch) -> bytes:
        return digest_of(self._source.arrays(batch))

    def _search(self, batch: Batch, number: int, first: int | None) -> None:
        for place, part in placed(batch):
            if finite := self._source.finite_rows(part):
                self.nonfinite.add(place, finite, self._source.examples_in(batch), number, first)

    @property
    def _is_compared(self) -> bool:
        """Whether batches that are read again are compared with those that were read first."""
        return self._eval_set.prepare is None and self._source.sharding == "batches"

    def _own(self) -> Iterator[Batch]:
        if self._cache.complete:
            yield from self._cache
            return
        digest = hashlib.blake2b(digest_size=16)
        self._cache.clear()  # of an evaluation that was broken off
        for batch in self._source.own():
            if self._is_compared:
                digest.update(self._digest(batch))
            else:
                self._cache.offer(batch)
            yield batch
        if not self._is_compared:
            self._cache.finish()
        elif digest.digest() != self._own_digest:
            raise self._has_changed()

    def _has_changed(self) -> EvaluationError:
        return EvaluationError(
            "stream_differs",
            f"eval set {self.name!r} is not what it was when it was first read: its files have changed, or it comes "
            f"in another order each time: {_ORDER_ADVICE}",
        )

    def _read_all(self, tick: Tick) -> Stream:
        fingerprint, own = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
        batches = examples = own_batches = own_examples = 0
        expected = self._eval_set.examples
        self._cache.clear()
        self._places = []
        for number, batch in self._source.numbered():
            digest = self._digest(batch)
            if batches == 0 and digest != self._sample_digest:
                raise EvaluationError(
                    "stream_differs",
                    f"eval set {self.name!r} comes in another order each time it is read: {_ORDER_ADVICE}",
                )
            fingerprint.update(digest)
            size = self._source.examples_in(batch)
            if self._check is not None:
                with following_from_code():
                    self._check(batches, size)
            if self._shard.owns(number):
                own_batches, own_examples = own_batches + 1, own_examples + size
                own.update(digest)
                self._places.append((batches, examples))
                if self._eval_set.prepare is None:
                    self._cache.offer(batch)
            batches, examples = batches + 1, examples + size
            if expected is not None and examples > expected:  # it may never end
                break
            tick()
        if batches == 0:
            raise EvaluationError(
                "stream_differs", f"eval set {self.name!r} is empty when it is read a second time: {_ORDER_ADVICE}"
            )
        if expected is not None and examples != expected:
            counted = f"more than {expected}" if examples > expected else str(examples)
            raise EvaluationError("count", f"eval set {self.name!r} has {counted} examples, EvalSet says {expected}")
        if self._eval_set.prepare is None:
            self._cache.finish()
        self._own_digest = own.digest()
        refuses = self._eval_set.nonfinite == "refuse"
        return Stream(
            self.name, fingerprint.hexdigest(), batches, examples, own_batches, own_examples, expected, refuses
        )

    def _trust(self) -> Stream:
        """Describe a stream that no rank reads whole: of files their list can be compared, else nothing."""
        sharding = self._source.sharding
        fingerprint = self._source.fingerprint_of_files() if sharding == "files" else ""
        refuses = self._eval_set.nonfinite == "refuse"
        return Stream(self.name, fingerprint, 0, 0, 0, 0, self._eval_set.examples, refuses, sharding)


def unless_batched(batch_size: int | None) -> str:
    """Return the advice to add where a batch turned out to be none; empty if the task gives a batch size."""
    if batch_size is not None:
        return ""
    return "; Task(batch_size=None) means that the data is batched already: if it is not, give a batch_size"
