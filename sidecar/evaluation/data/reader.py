"""Read eval sets as streams of whole batches: once in full with a fingerprint, then only the batches of this rank.

Batch b belongs to rank b mod n, so a batch holds the same examples for any number of workers, and results are equal to
the bit. Every rank must see the same stream, which the fingerprint proves. Of a set whose batches are listed, only a
sample is compared before (`SampleCheck` reads one batch of it again now and then), and the own batches are compared
with those of the first evaluation. Imports no framework.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice, repeat
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.backend import Stream, Tick
from sidecar.evaluation.data.batch_source import Batch, BatchSource, Division, ListedSource
from sidecar.evaluation.data.cache import Cache, CacheBudget
from sidecar.evaluation.data.digest import digest_of
from sidecar.evaluation.data.example_inputs import ExampleInputs
from sidecar.evaluation.data.groups import RepeatedKeys, group_numbers
from sidecar.evaluation.data.listed import ListedSet, read_sample
from sidecar.evaluation.data.nonfinite import WEIGHT, NonfiniteCounter
from sidecar.evaluation.data.shard import Shard, all_to_first
from sidecar.evaluation.data.slice_table import SliceTable, column_of
from sidecar.evaluation.data.third_part import ThirdPart
from sidecar.evaluation.failures import EvaluationError, following_from_code, task_error
from sidecar.evaluation.task import EvalSet, NonfinitePolicy

_SHARE_OF_FIRST: Final = 0.2
"""The share of the time of the first evaluation for reading batches again, if they are chosen by their numbers."""

_MOST_AGAIN: Final = 64
"""Limit of the batches of a rank that are read again after the first evaluation."""

_ORDER_OF_TENSORFLOW: Final = (
    "shuffle with a seed and reshuffle_each_iteration=False or not at all, list files with shuffle=False, give an "
    "ImageDataGenerator's flow(…, shuffle=False), give sample_from_datasets a seed, leave deterministic=False out"
)
_ORDER: Final = "do not shuffle, sort lists of files and what comes from a set"
_AT_RANDOM: Final = (
    ". If a dataset chooses at random, seed it with the example's index: random.seed(index) in __getitem__"
)

_IN_BATCHES: Final = (
    "; and a collate function that does, such as that of a masked language model, with a number: "
    "collate_fn=lambda rows: (torch.manual_seed(0), collate(rows))[1]"
)

_SHARE: Final = 0.02
"""The share of the time of evaluations for reading batches again."""

_MOST_ROUNDS: Final = 20
"""How often the same batches may come in a row. A source that repeats them more often is taken for endless."""

_FEWEST_BATCHES: Final = 2000
"""A set of fewer batches may be of equal ones, such as zeros."""

_MOST_BATCHES: Final = 100_000
"""Batches whose digests are compared, which takes 10 MB."""


class Rounds:
    """Find out whether the batches of a stream come again and again, by their digests. A step takes constant time.

    The shortest period follows from the longest beginning of the stream that is also its end: the failure function of
    D. E. Knuth, J. H. Morris and V. R. Pratt, "Fast pattern matching in strings", SIAM J. Comput. 6 (1977).
    """

    def __init__(self) -> None:
        self._digests: list[bytes] = []
        self._borders: list[int] = []  # for each beginning, the longest shorter one that is also its end

    def add(self, digest: bytes) -> int | None:
        """Note the digest of the next batch; return the number of batches in a round once there are many rounds."""
        if len(self._digests) == _MOST_BATCHES:
            return None
        border = self._borders[-1] if self._borders else 0
        if self._digests:
            while border and self._digests[border] != digest:
                border = self._borders[border - 1]
            border += self._digests[border] == digest
        self._digests.append(digest)
        self._borders.append(border)
        batches = len(self._digests)
        in_round = batches - border
        return in_round if batches > max(_MOST_ROUNDS * in_round, _FEWEST_BATCHES) else None


class SampleCheck:
    """Compare a batch with its first reading: the first one of the set or, if batches are listed, one of their sample.

    `source`: opens the data. The first batch is read at once. `digest_of`: returns the digest of the content of a
    batch.

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


def order_advice(more: str = "and let a generator start again whenever its function is called") -> str:
    """Return what gives data the same order each time, in the words of the framework of this process."""
    order = _ORDER_OF_TENSORFLOW if "tensorflow" in sys.modules else _ORDER
    of_batches = _IN_BATCHES if "torch" in sys.modules else ""
    return f"{order}, {more}{_AT_RANDOM}{of_batches}"


class EvalSetReader:
    """Read one eval set on one rank.

    Raises:
        EvaluationError: The eval set is empty.
    """

    def __init__(
        self,
        name: str,  # name of the eval set
        eval_set: EvalSet,  # description of the eval set in the task
        source: BatchSource,  # opens the data
        *,
        shard: Shard,  # this rank, and the number of ranks
        budget: CacheBudget,  # bytes of batches that may stay in memory
        nonfinite: NonfinitePolicy = "count",  # what `EvalSet(nonfinite=None)` means
    ) -> None:
        self.name = name
        self._eval_set = replace(eval_set, nonfinite=eval_set.nonfinite or nonfinite)
        self._source, self._shard = source, shard
        self._sample = SampleCheck(source, self._digest)
        if self._sample.first is None and source.sharding != "own":
            raise task_error(f"eval set {name!r} is empty: it has no example to evaluate")
        self._most: int | None = None  # only so many batches of the whole set are read
        self._stream: Stream | None = None
        self._own_digest: bytes | None = None  # of this rank's batches, once they have been read
        self._listed: ListedSet | None = None
        self._places: list[tuple[int, int | None]] = []  # of this rank's batches: number, and first example in the set
        self._cache = Cache(budget, source.arrays)
        self._check: Callable[[int, int], None] | None = None
        self.nonfinite = NonfiniteCounter()
        self.is_left_to_first = False
        self.third_part: ThirdPart | None = None
        """Decides what the third part of each batch holds, if the task takes it as weights; else None."""

    @cached_property
    def slices(self) -> SliceTable | None:
        """The slices to which examples belong; None: there are none. Raises `TaskError` for impossible ones."""
        return SliceTable(self.name, self._eval_set.slices) if self._eval_set.slices else None

    def inputs(self) -> ExampleInputs:
        """Return what collects the inputs that the task shows of examples, for one evaluation."""
        return ExampleInputs(self.name, self._eval_set.show)

    @cached_property
    def groups(self) -> NDArray[np.int64] | None:
        """The number of the group of each example, once it was read; None: no groups. Raises `TaskError`."""
        groups = self._eval_set.groups
        if groups is None:
            return None
        if isinstance(groups, str) and self._source.sharding != "batches":
            raise TaskError(
                f"EvalSet(groups={groups!r}) of {self.name!r}: no worker reads all examples of the set, so give one "
                f"key for each example instead of a column: groups=keys"
            )
        keys = self._keys if isinstance(groups, str) else groups
        return group_numbers(self.name, keys, self.examples, is_whole=self._most is None)

    @cached_property
    def _keys(self) -> list[Any]:
        """The values of the column that `EvalSet(groups=…)` names, of the examples that were read."""
        return []

    def require_same_sample(self, source: BatchSource) -> None:
        """Raise `EvaluationError` unless a source that was opened before this one begins with the same batch.

        Call it for sources whose function draws random numbers, such as to divide a dataset.
        """
        first = source.sample()
        if (None if first is None else self._digest(first)) != self._sample.first:
            raise EvaluationError(
                "stream_differs",
                f"eval set {self.name!r}: its function draws random numbers, and returns other examples each time it "
                f"is called, among them some that training has seen: give the split that training has, such as "
                f"random_split(dataset, lengths, generator=torch.Generator().manual_seed(0)) or "
                f"train_test_split(…, random_state=0), with the seed of training",
            )

    def expect_weights(self, remedy: str, first: Batch | None) -> None:
        """Take the third part of each batch as weights, and let `read` refuse it if it holds numbers of examples.

        `remedy` is what to write in this case. `first` is the first batch of the set after `prepare`.
        """
        self.third_part = ThirdPart(self.name, remedy)
        if first is not None and not self._is_compared:  # no other batch is seen by all ranks
            self._look_at(self._weights_in(first), None)

    def leave_to_first(self, reason: str, check: Callable[[int, int], None] | None = None) -> None:
        """Give all batches to rank 0, in order, and none to the other ranks; a stream that was read is read again.

        `reason` completes "the set divides itself, and …" in the message of the `EvaluationError` for such a set.
        `check` is called with number and size of each batch that is read, and raises `EvaluationError` for one that
        cannot be evaluated in this way.
        """
        if self._source.sharding == "own":
            raise task_error(
                f"eval set {self.name!r} divides itself, and {reason}: let its source take no Shard and yield all "
                f"examples in order; worker 0 evaluates all of them"
            )
        self._check, self._shard = check or self._check, all_to_first(self._shard)
        self._source.leave_to_first()
        self.is_left_to_first = True
        self._stream, self._own_digest, self.nonfinite = None, None, NonfiniteCounter()
        self._cache.clear()

    def read(self, tick: Tick, most: int | None = None) -> Stream:
        """Fingerprint the stream: read all of it once, or a sample. Cache the own batches that are read in full.

        `most`: evaluate only so many batches of the set, the first ones. It is the same in every call.
        """
        self._most = most
        if self._source.sharding in ("batches", "index"):
            read = self._read_all if self._source.sharding == "batches" else self._read_sample
            if self._stream is None and self._is_compared and self.third_part is not None:
                self.third_part.begin()
            self._stream = self._stream or read(tick)
            self._require_weights()
            return self._stream
        self._require_weights()
        stream = self._describe_unread()
        if self._stream not in (None, stream):
            raise self._has_changed()
        self._stream = stream
        return stream

    @property
    def sharding(self) -> Division:
        """The way in which the data are divided among the ranks."""
        return self._source.sharding

    @property
    def examples(self) -> int | None:
        """Number of examples of all ranks together, once read; None if it is unknown before the end."""
        return None if self._stream is None or not self._stream.is_counted else self._stream.examples

    @property
    def batches(self) -> int:
        """Number of batches of all ranks together, once read; 0 if it is unknown before the end."""
        return 0 if self._stream is None or not self._stream.is_counted else self._stream.batches

    def own(self) -> Iterator[tuple[int, int | None, Batch]]:
        """Yield the batches of this rank in order, each with its number and the number of its first example in the set.

        If these are unknown, the former is 0 and the latter None. This method fills `nonfinite`, only once if later
        evaluations see the same data. Raises `EvaluationError` (`stream_differs`) if the batches differ from those that
        were read.
        """
        began = time.monotonic()
        places: Iterator[tuple[int, int | None]] = repeat((0, None)) if self.examples is None else iter(self._places)
        counts = not self.nonfinite.is_final
        if counts:
            self.nonfinite = NonfiniteCounter()
        for batch in self._own():
            try:
                number, first = next(places)
            except StopIteration:
                raise self._has_changed() from None
            if counts:
                self._count_nonfinite(batch, number, first)
            yield number, first, batch
        self.nonfinite.is_final = self._cache.complete or self._is_compared
        self._sample.earn(time.monotonic() - began)

    def differs(self) -> bool:
        """Return whether a batch that was read has another content now: see `SampleCheck`."""
        return self._stream is not None and self._sample.differs(self._listed)

    def digest(self, batch: Batch) -> bytes:
        """Return the digest of the content of a batch."""
        return self._digest(batch)

    def examples_in(self, batch: Batch) -> int:
        """Return the number of examples in a batch."""
        return self._source.examples_in(batch)

    def _digest(self, batch: Batch) -> bytes:
        return digest_of(self._source.arrays(batch))

    def _weights_in(self, batch: Batch) -> list[Any]:
        if self.third_part is None:
            return []
        parts = [part for place, part in self._source.parts(batch) if place == WEIGHT]
        return [single for part in parts for single in (part if isinstance(part, list) else [part])]

    def _look_at(self, weights: list[Any], first: int | None) -> None:
        for part in weights:
            assert self.third_part is not None, "otherwise there are no weights"
            self.third_part.look_at(part, first)

    def _require_weights(self) -> None:
        if self.third_part is not None:
            self.third_part.require_weights()

    def _count_nonfinite(self, batch: Batch, number: int, first: int | None) -> None:
        for place, part in self._source.parts(batch):
            if place == "input" and self._eval_set.nonfinite == "allow":
                continue
            if finite := self._source.finite_rows(part):
                self.nonfinite.add(place, finite, self._source.examples_in(batch), number, first)

    @property
    def _is_compared(self) -> bool:
        """Whether the batches of later reads are compared with those of the first read."""
        return self._eval_set.prepare is None and self._source.sharding in ("batches", "index")

    def _own(self) -> Iterator[Batch]:
        if self._cache.complete:
            yield from self._cache
            return
        digest = hashlib.blake2b(digest_size=16)
        is_first, began = self._own_digest is None, time.monotonic()
        own_digests: dict[int, bytes] = {}
        self._cache.clear()  # from an interrupted evaluation
        for index, batch in enumerate(islice(self._source.own(), self._most_own)):
            if self._is_compared:
                found = self._digest(batch)
                self._require_as_sampled(index, found)
                digest.update(found)
                if is_first and self._listed is not None:
                    own_digests[self._places[index][0]] = found
            if is_first or not self._is_compared:
                self._cache.offer(batch)
            yield batch
        if is_first or not self._is_compared:
            self._cache.finish()
        elif digest.digest() != self._own_digest:
            raise self._has_changed()
        if self._listed is not None:
            self._require_same_again(own_digests, _SHARE_OF_FIRST * (time.monotonic() - began))
        self._own_digest = digest.digest()

    @property
    def _most_own(self) -> int | None:
        """Number of batches of this rank that are read; None: all of them."""
        return self._most if self._most is None or self.examples is None else len(self._places)

    def _require_as_sampled(self, index: int, digest: bytes) -> None:
        """Raise `EvaluationError` if a batch of this rank has other contents than when it was read as a sample."""
        if self._listed is None:
            return
        number = self._places[index][0] if index < len(self._places) else None
        if number is not None and self._listed.digests.get(number, digest) != digest:
            raise self._has_changed()

    def _require_same_again(self, digests: dict[int, bytes], seconds: float) -> None:
        """Read some of this rank's batches a second time, for a limited time, in an order that their contents choose.

        Raises `EvaluationError` if one has another content, as with transforms that are random for few examples.
        """
        assert self._listed is not None, "batches are chosen by their numbers"
        numbers = sorted(digests.keys() - self._listed.digests.keys(), key=lambda number: digests[number])[:_MOST_AGAIN]
        if not numbers:
            return
        until = time.monotonic() + seconds
        for number, batch in zip(numbers, cast("ListedSource", self._source).chosen(numbers), strict=False):
            if self._digest(batch) != digests[number]:
                raise EvaluationError(
                    "stream_differs",
                    f"eval set {self.name!r}: batch {number} (from 0) has another content when it is read again: leave "
                    f"random transforms, such as crops and flips, out of an evaluation",
                )
            if time.monotonic() >= until:
                return

    def _has_changed(self) -> EvaluationError:
        return EvaluationError(
            "stream_differs",
            f"eval set {self.name!r} differs from the first time that it was read: its files have changed, or its "
            f"order changes each time: {order_advice()}",
        )

    def _has_other_order(self) -> EvaluationError:
        return EvaluationError(
            "stream_differs",
            f"eval set {self.name!r} has another order each time that it is read, or other values: {order_advice()}. "
            f"Data that count or keep what was read before must give the same examples again: make such state anew in "
            f"the function of the eval set",
        )

    @property
    def _expected(self) -> int | None:
        """Number of examples by the task, if all of them are read."""
        return self._eval_set.examples if self._most is None else None

    def _require_expected(self, examples: int) -> None:
        expected = self._expected
        if expected is not None and examples != expected:
            counted = f"more than {expected}" if examples > expected else str(examples)
            raise EvaluationError("count", f"eval set {self.name!r} has {counted} examples, EvalSet says {expected}")

    def _read_all(self, tick: Tick) -> Stream:
        fingerprint, own_digest = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
        batches = examples = own_batches = 0
        self._keys.clear()
        repeated = RepeatedKeys()
        expected, rounds = self._expected, Rounds()
        self._cache.clear()
        self._places = []
        for number, batch in islice(self._source.numbered(), self._most):
            digest = self._digest(batch)
            if batches == 0 and digest != self._sample.first:
                raise self._has_other_order()
            fingerprint.update(digest)
            size = self._source.examples_in(batch)
            if self._is_compared:
                self._look_at(self._weights_in(batch), examples)
            self._note_groups(batch, repeated)
            if self._check is not None:
                with following_from_code():
                    self._check(batches, size)
            if self._shard.owns(number):
                own_batches += 1
                own_digest.update(digest)
                self._places.append((batches, examples))
                if self._eval_set.prepare is None:
                    self._cache.offer(batch)
            batches, examples = batches + 1, examples + size
            if expected is not None and examples > expected:  # the stream may be endless
                break
            self._require_end(rounds, digest, examples // batches)
            tick()
        if batches == 0:
            raise EvaluationError(
                "stream_differs", f"eval set {self.name!r} is empty when it is read a second time: {order_advice()}"
            )
        self._require_expected(examples)
        if self._eval_set.prepare is None:
            self._cache.finish()
        self._own_digest = own_digest.digest()
        return self._described(
            fingerprint=fingerprint.hexdigest(),
            batches=batches,
            examples=examples,
            own_batches=own_batches,
            notes=repeated.notes(examples),
        )

    def _require_end(self, rounds: Rounds, digest: bytes, size: int) -> None:
        """Fail if the batches come again and again. `size`: the number of examples of a batch, about."""
        batches = rounds.add(digest) if self._expected is None else None
        if batches is None:
            return
        each = f"the same {batches} batches" if batches > 1 else "the same batch"
        raise EvaluationError(
            "count",
            f"eval set {self.name!r} gives {each} (some {batches * size} examples) more than {_MOST_ROUNDS} times, and "
            f"is taken for endless: let it end after one round, as with itertools.islice or .take(n) in the function "
            f"of the eval set. Data that come so often, and end, need EvalSet(examples=…)",
        )

    def _described(self, **facts: Any) -> Stream:
        """Return the stream with these facts, and those that all ranks know before they read it."""
        refuses = self._eval_set.nonfinite == "refuse"
        return Stream(eval_set=self.name, expected=self._expected, refuses_nonfinite=refuses, **facts)

    def _note_groups(self, batch: Batch, repeated: RepeatedKeys) -> None:
        """Remember the keys of the groups of a batch, if they are a column of it; without groups, those that repeat."""
        if isinstance(column := self._eval_set.groups, str):
            where = f"EvalSet(groups={column!r}) of {self.name!r}"
            self._keys.extend(column_of(batch, column, where, "give one key for each example, groups=keys"))
        elif column is None:
            repeated.look_at(batch)

    def _read_sample(self, tick: Tick) -> Stream:
        """Describe a stream whose batches are listed, from the list and a sample of the batches."""
        weights: list[list[Any]] = []

        def digest(batch: Batch) -> bytes:
            weights.append(self._weights_in(batch))
            return self._digest(batch)

        listed = self._listed = read_sample(cast("ListedSource", self._source), digest, tick)
        if self._is_compared:
            firsts = [first for _, first in listed.places(Shard(0, 1))]
            for number, parts in zip(listed.digests, weights, strict=True):
                self._look_at(parts, firsts[number])
        if listed.digests[0] != self._sample.first:
            raise self._has_other_order()
        sizes = listed.sizes[: self._most]
        self._places = [place for place in listed.places(self._shard) if place[0] < len(sizes)]
        examples = sum(sizes)
        self._require_expected(examples)
        return self._described(
            fingerprint=listed.fingerprint,
            batches=len(sizes),
            examples=examples,
            own_batches=len(self._places),
            sharding="index",
            sampled=len(listed.digests),
        )

    def _describe_unread(self) -> Stream:
        """Describe a stream that no rank reads in full. For files the list is compared, otherwise nothing."""
        sharding = self._source.sharding
        fingerprint = self._source.fingerprint_of_files() if sharding == "files" else ""
        return self._described(
            fingerprint=fingerprint,
            batches=0,
            examples=0,
            own_batches=0,
            sharding=sharding,
        )
