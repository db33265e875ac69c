"""Eval sets as streams of whole batches: read once in full and fingerprinted, then only a rank's own batches.

Batch b belongs to rank b mod n, so a batch holds the same examples whatever the number of workers, and results are
equal to the bit. That needs every rank to see the same stream: the fingerprint proves it.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.evaluation.backend import Stream, Tick
from sidecar.evaluation.backends.tensorflow.cache import Batch, Cache, CacheBudget
from sidecar.evaluation.backends.tensorflow.elements import placed
from sidecar.evaluation.backends.tensorflow.finite import finite_rows, is_finite
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.backends.tensorflow.sources import Source, alone, unless_batched
from sidecar.evaluation.failures import EvaluationError, following_from_code
from sidecar.evaluation.nonfinite import Finds
from sidecar.evaluation.shard import Shard
from sidecar.evaluation.task import EvalSet

_ORDER_ADVICE: Final = (
    "shuffle with a seed and reshuffle_each_iteration=False or not at all, list files with shuffle=False, and let a "
    "generator start anew whenever its function is called"
)


class Batches:
    """One eval set on one rank."""

    def __init__(
        self, name: str, eval_set: EvalSet, *, batch_size: int | None, shard: Shard, threads: int, budget: CacheBudget
    ) -> None:
        self.name = name
        self._eval_set, self._shard = eval_set, shard
        self._source = Source(name, eval_set, batch_size=batch_size, shard=shard, threads=threads)
        self._batch_size = self._source.batch_size
        self._numbered, self._prepared = self._source.numbered(), self._source.own(self._prepare)
        self.spec = tf.nest.map_structure(partial(of_examples, None), self._prepared.element_spec)
        self._sample: Batch | None
        _, self._sample = next(self._source.read(self._numbered.take(1)), (None, None))
        if self._sample is None and self._source.sharding != "own":
            raise EvaluationError("task_error", f"eval set {name!r} is empty: it has no example to evaluate")
        self._sample_digest = None if self._sample is None else digest_of(self._sample)
        self._stream: Stream | None = None
        self._own_digest = b""
        self._places: list[tuple[int, int | None]] = []  # of own batches: number and first example in the whole set
        self._cache = Cache(budget)
        self._recurrent = RecurrentStates(None)
        self.nonfinite = Finds()
        self._looked = False

    def first(self) -> Batch:
        """The batch to build the model on; zeros where a set that shards itself gives this rank none. Called once."""
        sample, self._sample = self._sample, None
        if sample is None:
            return tf.nest.map_structure(_zeros, self.spec)
        prepared = next(self._source.read(self._prepare(tf.data.Dataset.from_tensors(sample))))
        sizes = {len(tensor) for tensor in tf.nest.flatten(prepared) if isinstance(tensor, tf.Tensor)}
        if len(sizes) > 1:
            raise EvaluationError(
                "task_error",
                f"eval set {self.name!r}: the parts of a batch (x, y, sample_weight) hold {sorted(sizes)} examples, "
                f"they need equally many" + unless_batched(self._batch_size),
            )
        return prepared

    def leave_to_first(self, recurrent: RecurrentStates) -> None:
        """Let rank 0 evaluate all batches in turn, for a model with these states, and the other ranks none.

        Raises `EvaluationError` for a set that divides itself; `read` does for a batch that does not fit.
        """
        if self._source.sharding == "own":
            raise EvaluationError(
                "task_error",
                f"eval set {self.name!r} divides itself, and the model's {recurrent} go on from the batch before: let "
                f"its source take no Shard and yield all examples in order, all of which worker 0 evaluates",
            )
        self._recurrent, self._shard = recurrent, alone(self._shard)
        self._source.leave_to_first()
        self._prepared = self._source.own(self._prepare)

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
        """This rank's own batches in order, each after its number and the place of its first example in the whole set.

        Where that is not known it is None, and the number says nothing.

        Fills `nonfinite`, once where later evaluations see the same data. Raises `EvaluationError` (`stream_differs`)
        if they are no longer those that were read.
        """
        places: Iterator[tuple[int, int | None]] = repeat((0, None)) if self.examples is None else iter(self._places)
        looks = not self._looked
        if looks:
            self.nonfinite = Finds()
        for batch in self._own():
            try:
                number, first = next(places)
            except StopIteration:
                raise self._has_changed() from None
            if looks:
                self._look(batch, number, first)
            yield number, first, batch
        self._looked = self._cache.complete or self._is_known

    def _look(self, batch: Batch, number: int, first: int | None) -> None:
        for place, part in placed(batch):
            if not all(map(is_finite, tf.nest.flatten(part, expand_composites=True))):
                finite = [rows.numpy() for rows in finite_rows(part)]
                self.nonfinite.add(place, finite, examples_in(batch), number, first)

    @property
    def _is_known(self) -> bool:
        """Whether what is read again is compared with what was read first."""
        return self._eval_set.prepare is None and self._source.sharding == "batches"

    def _own(self) -> Iterator[Batch]:
        if self._cache.complete:
            yield from self._cache
            return
        digest = hashlib.blake2b(digest_size=16)
        self._cache.clear()  # of an evaluation that was broken off
        for batch in self._source.read(self._prepared):
            if self._is_known:
                digest.update(digest_of(batch))
            else:
                self._cache.offer(batch)
            yield batch
        if not self._is_known:
            self._cache.finish()
        elif digest.digest() != self._own_digest:
            raise self._has_changed()

    def _has_changed(self) -> EvaluationError:
        return EvaluationError(
            "stream_differs",
            f"eval set {self.name!r} is not what it was when it was first read: its files have changed, or it comes "
            f"in another order each time: {_ORDER_ADVICE}",
        )

    def refuse_batch_means(self, names: Sequence[str]) -> None:
        """Raise `EvaluationError` for means over batches where batches depend on the number of workers."""
        if names and self._source.sharding == "own":
            told = ", ".join(repr(name.rpartition(":")[2]) for name in names)
            raise EvaluationError(
                "task_error",
                f"{told} of eval set {self.name!r} would be a mean over batches, and the set divides itself, so that "
                f"its batches depend on the number of workers: let its source yield all examples, or measure with a "
                f"metric that adds up examples",
            )

    def _prepare(self, batches: Any) -> Any:
        """Map `prepare` over single elements; batches come out as they went in, since only the last one is short."""
        if self._eval_set.prepare is None:
            return batches
        if self._batch_size is None:
            return batches.map(self._eval_set.prepare, num_parallel_calls=tf.data.AUTOTUNE)
        elements = batches.unbatch().map(self._eval_set.prepare, num_parallel_calls=tf.data.AUTOTUNE)
        is_ragged = any(isinstance(spec, tf.RaggedTensorSpec) for spec in tf.nest.flatten(batches.element_spec))
        return elements.ragged_batch(self._batch_size) if is_ragged else elements.batch(self._batch_size)

    def _read_all(self, tick: Tick) -> Stream:
        fingerprint, own = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
        batches = examples = own_batches = own_examples = 0
        expected = self._eval_set.examples
        self._cache.clear()
        self._places = []
        for number, batch in self._source.read(self._numbered):
            digest = digest_of(batch)
            if batches == 0 and digest != self._sample_digest:
                raise EvaluationError(
                    "stream_differs",
                    f"eval set {self.name!r} comes in another order each time it is read: {_ORDER_ADVICE}",
                )
            fingerprint.update(digest)
            size = examples_in(batch)
            if self._recurrent and size != self._recurrent.batch_size:
                with following_from_code():
                    raise self._does_not_fit(batches, size)
            if self._shard.owns(int(number)):
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
            found = f"more than {expected}" if examples > expected else str(examples)
            raise EvaluationError("count", f"eval set {self.name!r} has {found} examples, EvalSet says {expected}")
        if self._eval_set.prepare is None:
            self._cache.finish()
        self._own_digest = own.digest()
        fingerprinted = fingerprint.hexdigest()
        refuses = self._eval_set.nonfinite == "refuse"
        return Stream(self.name, fingerprinted, batches, examples, own_batches, own_examples, expected, refuses)

    def _does_not_fit(self, number: int, size: int) -> EvaluationError:
        fixed = self._recurrent.batch_size
        return EvaluationError(
            "task_error",
            f"eval set {self.name!r}: batch {number} (from 0) holds {size} examples, and the model's {self._recurrent} "
            f"take {fixed} in each: give a multiple of {fixed} examples, or leave out the rest with "
            f"dataset.batch({fixed}, drop_remainder=True) and Task(batch_size=None)",
        )

    def _trust(self) -> Stream:
        """No rank reads all: of files their list can be compared, of a set that divides itself counts only."""
        sharding = self._source.sharding
        fingerprint = self._source.fingerprint_of_files() if sharding == "files" else ""
        refuses = self._eval_set.nonfinite == "refuse"
        return Stream(self.name, fingerprint, 0, 0, 0, 0, self._eval_set.examples, refuses, sharding)


def array_of(tensor: Any) -> NDArray[Any]:
    """The values of a tensor, a variable or a number; numpy itself cannot read a scalar tensor of bfloat16."""
    return np.asarray(tf.convert_to_tensor(tensor).numpy())


def feed(update: Callable[[Any], None], array: NDArray[Any]) -> None:
    """Type, shape and contents of an array into a hash, whose `update` this takes."""
    if array.dtype.hasobject:
        update(f"text{array.shape}".encode())
        for text in array.ravel().tolist():
            update(len(text).to_bytes(8, "little") + text)
    else:
        update(f"{array.dtype}{array.shape}".encode())
        update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def examples_in(batch: Batch) -> int:
    """How many examples a batch holds."""
    return int(tf.nest.flatten(batch)[0].shape[0])


def of_examples(number: int | None, spec: Any) -> Any:
    """The spec of a batch of that size; None: of any, so that a short last batch needs no second trace."""
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([number, *spec.shape[1:]], spec.dtype)
    return spec


def _zeros(spec: Any) -> Any:
    zeros = tf.zeros([dimension or 1 for dimension in spec.shape], spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_tensor(zeros, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype)
    return tf.sparse.from_dense(zeros) if isinstance(spec, tf.SparseTensorSpec) else zeros


def digest_of(batch: Batch) -> bytes:
    """Digest of everything that a batch holds."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tf.nest.flatten(batch, expand_composites=True):
        feed(digest.update, tensor.numpy())
    return digest.digest()
