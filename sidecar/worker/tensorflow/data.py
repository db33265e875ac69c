"""Eval sets as streams of whole batches: read once in full and fingerprinted, then only a rank's own batches.

Batch b belongs to rank b mod n, so a batch holds the same examples whatever the number of workers, and results are
equal to the bit. That needs every rank to see the same stream: the fingerprint proves it.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from sidecar.worker.backend import Stream, Tick
from sidecar.worker.failures import EvaluationError
from sidecar.worker.shard import Shard
from sidecar.worker.task import EvalSet

Batch = Any
"""A nested structure of tensors whose first dimension counts examples."""


@dataclass(slots=True)
class CacheBudget:
    """Bytes of prepared batches that may still be kept in memory, over all eval sets of a worker."""

    left: int

    def take(self, batch: Batch) -> bool:
        """Whether the batch fits; if so, its bytes are taken."""
        size = sum(_bytes_of(tensor) for tensor in tf.nest.flatten(batch, expand_composites=True))
        if size > self.left:
            return False
        self.left -= size
        return True


class Batches:
    """One eval set on one rank."""

    def __init__(
        self, name: str, eval_set: EvalSet, *, batch_size: int | None, shard: Shard, threads: int, budget: CacheBudget
    ) -> None:
        self.name = name
        self._eval_set, self._batch_size, self._shard, self._budget = eval_set, batch_size, shard, budget
        self._source = _batched(name, _make_dataset(name, eval_set, shard), batch_size, threads)
        self._prepared = self._source if eval_set.prepare is None else self._prepare(self._source)
        self.spec = tf.nest.map_structure(_any_number_of_examples, self._prepared.element_spec)
        self._first = self._read_first()
        self._stream: Stream | None = None
        self._cache: list[Batch] = []
        self._cached_all = False

    def first(self) -> Batch:
        """A batch to build the model on; where this rank's own part is empty, one of zeros."""
        if self.exhausted:
            return tf.nest.map_structure(_zeros, self.spec)
        return next(iter(self._prepared))

    @property
    def exhausted(self) -> bool:
        """Whether there is no batch at all in what this rank reads."""
        return self._first is None

    def read(self, tick: Tick) -> Stream:
        """Read the whole stream, fingerprint it, and keep this rank's own batches while memory is left for them."""
        if self._stream is None:
            self._stream = self._read_all(tick) if not self._eval_set.shards_itself else self._trust()
        return self._stream

    def own(self) -> Iterator[Batch]:
        """This rank's own batches, in order."""
        if self._cached_all:
            yield from self._cache
            return
        keep = self._eval_set.prepare is not None or self._eval_set.shards_itself
        for batch in self._own_dataset():
            keep = keep and self._budget.take(batch)
            if keep:
                self._cache.append(batch)
            yield batch
        self._cached_all = keep
        if not keep:
            self._cache.clear()

    def _own_dataset(self) -> Any:
        if self._eval_set.shards_itself:
            return self._prepared
        rank, world_size = self._shard.rank, self._shard.world_size
        own = self._source.enumerate().filter(lambda index, _: index % world_size == rank).map(lambda _, batch: batch)
        return own if self._eval_set.prepare is None else self._prepare(own)

    def _prepare(self, batches: Any) -> Any:
        """Map `prepare` over single elements; batches come out as they went in, since only the very last is short."""
        if self._batch_size is None:
            return batches.map(self._eval_set.prepare, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
        elements = batches.unbatch().map(self._eval_set.prepare, num_parallel_calls=tf.data.AUTOTUNE)
        return elements.batch(self._batch_size).prefetch(2)

    def _read_first(self) -> bytes | None:
        return next((_digest(batch) for batch in self._source.take(1)), None)

    def _read_all(self, tick: Tick) -> Stream:
        if self.exhausted:
            raise EvaluationError("task_error", f"eval set {self.name!r} is empty: it has no example to evaluate")
        fingerprint = hashlib.blake2b(digest_size=16)
        batches = examples = own_batches = own_examples = 0
        keep = self._eval_set.prepare is None
        for batch in self._source:
            digest = _digest(batch)
            if batches == 0 and digest != self._first:
                raise EvaluationError(
                    "stream_differs",
                    f"eval set {self.name!r} comes in another order each time it is read: shuffle with a seed and "
                    f"reshuffle_each_iteration=False or not at all, and list files with shuffle=False",
                )
            fingerprint.update(digest)
            count = _examples_in(batch)
            if self._shard.owns(batches):
                own_batches, own_examples = own_batches + 1, own_examples + count
                keep = keep and self._budget.take(batch)
                if keep:
                    self._cache.append(batch)
            tick()
            batches, examples = batches + 1, examples + count
        expected = self._eval_set.examples
        if expected is not None and examples != expected:
            raise EvaluationError("count", f"eval set {self.name!r} has {examples} examples, EvalSet says {expected}")
        self._cached_all = keep
        if not keep:
            self._cache.clear()
        return Stream(self.name, fingerprint.hexdigest(), batches, examples, own_batches, own_examples, expected)

    def _trust(self) -> Stream:
        """A set that shards itself promises that every example is in one shard; only counts can be checked."""
        return Stream(self.name, "", 0, 0, 0, 0, self._eval_set.examples)


def _make_dataset(name: str, eval_set: EvalSet, shard: Shard) -> Any:
    made = eval_set.source(shard) if eval_set.shards_itself else eval_set.source()
    if isinstance(made, tuple | list | dict) or hasattr(made, "__array__"):
        made = tf.data.Dataset.from_tensor_slices(tuple(made) if isinstance(made, list) else made)
    if not isinstance(made, tf.data.Dataset):
        raise EvaluationError(
            "task_error",
            f"eval set {name!r}: expected a tf.data.Dataset or numpy arrays (x, y), found {type(made).__name__}",
        )
    if made.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise EvaluationError("task_error", f"eval set {name!r} repeats for ever: remove .repeat(), or add .take(n)")
    return made


def _batched(name: str, dataset: Any, batch_size: int | None, threads: int) -> Any:
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = threads
    if batch_size is not None:
        dataset = dataset.batch(batch_size)
    elif any(getattr(spec, "shape", None) == () for spec in tf.nest.flatten(dataset.element_spec)):
        raise EvaluationError(
            "task_error",
            f"eval set {name!r} yields single examples, {dataset.element_spec}, and Task(batch_size=None) means that "
            f"the data is batched already: give a batch_size",
        )
    return dataset.with_options(options).prefetch(2)


def _any_number_of_examples(spec: Any) -> Any:
    """The spec of a batch of any size, so that a short last batch needs no second trace."""
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec


def _zeros(spec: Any) -> Any:
    return tf.zeros([dimension or 1 for dimension in spec.shape], spec.dtype)


def _examples_in(batch: Batch) -> int:
    first = tf.nest.flatten(batch)[0]
    return int(first.shape[0])


def _digest(batch: Batch) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tf.nest.flatten(batch, expand_composites=True):
        array = tensor.numpy()
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        if array.dtype.hasobject:
            for text in array.ravel().tolist():
                digest.update(len(text).to_bytes(8, "little") + text)
        else:
            digest.update(array.tobytes())
    return digest.digest()


def _bytes_of(tensor: Any) -> int:
    array = tensor.numpy()
    if array.dtype.hasobject:
        return sum(len(text) for text in array.ravel().tolist())
    return int(array.nbytes)
