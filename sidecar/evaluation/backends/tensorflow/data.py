"""Read eval sets with TensorFlow: divide `tf.data` datasets among ranks and inspect the tensors in a batch."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.evaluation.backends.tensorflow.finite import finite_rows, is_finite
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.backends.tensorflow.sources import Source
from sidecar.evaluation.data.batch_source import Batch, Division
from sidecar.evaluation.data.cache import CacheBudget
from sidecar.evaluation.data.elements import parts_of, placed
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.remedy import UNLESS_BATCHED, Remedy
from sidecar.evaluation.task import EvalSet
from sidecar.protocol.records import Sharding


class Batches(EvalSetReader):
    """Read one eval set on one rank with TensorFlow."""

    def __init__(
        self, name: str, eval_set: EvalSet, *, batch_size: int | None, shard: Shard, threads: int, budget: CacheBudget
    ) -> None:
        self._datasets = DatasetSource(name, eval_set, batch_size=batch_size, shard=shard, threads=threads)
        super().__init__(name, eval_set, self._datasets, shard=shard, budget=budget)
        self.spec = self._datasets.spec
        self.negatives: NDArray[np.int64] = np.zeros(2, np.int64)
        """The numbers of negative whole labels, and of negative weights, in the batches of this rank."""
        self._negatives_with = self.nonfinite  # counted anew together with numbers that are not finite

    def first(self) -> Batch:
        """Return the batch to build the model on; call this once.

        The batch is all zeros where a set that divides itself has no batch for this rank.
        """
        return self._datasets.first()

    def leave_to_first_for(self, recurrent: RecurrentStates) -> None:
        """Let rank 0 evaluate all batches in order, because the model carries these states from batch to batch.

        Raise `EvaluationError` for a set that divides itself. `read` raises it for a batch of another size.
        """
        reason = f"the model's {recurrent} continue from the previous batch"
        self.leave_to_first(reason, partial(self._require_fit, recurrent))

    def _count_nonfinite(self, batch: Batch, number: int, first: int | None) -> None:
        super()._count_nonfinite(batch, number, first)
        if self._negatives_with is not self.nonfinite:
            self._negatives_with, self.negatives = self.nonfinite, np.zeros(2, np.int64)
        _, labels, weights = parts_of(batch)
        self.negatives += np.array([_negatives(labels, "i"), _negatives(weights, "if")])

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes on what the source leaves out."""
        return self._datasets.notes

    @property
    def division(self) -> Division:
        """Return `own` if batches depend on the number of workers, else `batches`: batches of files end with a file."""
        return "own" if self._datasets.sharding == "own" else "batches"

    def _require_fit(self, recurrent: RecurrentStates, number: int, size: int) -> None:
        fixed = recurrent.batch_size
        if size != fixed:
            raise task_error(
                f"eval set {self.name!r}: batch {number} (from 0) holds {size} examples, and the model's {recurrent} "
                f"need {fixed}: give a multiple of {fixed} examples, or leave out the rest with "
                f"dataset.batch({fixed}, drop_remainder=True)",
                remedy=Remedy(" and Task(batch_size=None)", ""),
            )


class DatasetSource:
    """Implement `sidecar.evaluation.data.batch_source.BatchSource` with the datasets of one eval set."""

    def __init__(self, name: str, eval_set: EvalSet, *, batch_size: int | None, shard: Shard, threads: int) -> None:
        self._name, self._prepare_element = name, eval_set.prepare
        self._source = Source(name, eval_set, batch_size=batch_size, shard=shard, threads=threads)
        self._batch_size = self._source.batch_size
        self._numbered, self._prepared = self._source.numbered(), self._source.own(self._prepare)
        self.spec = tf.nest.map_structure(partial(of_examples, None), self._prepared.element_spec)
        self._sample: Batch | None = None

    @property
    def sharding(self) -> Sharding:
        """Return how the data are divided among the ranks."""
        return self._source.sharding

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes on what the source leaves out."""
        return self._source.notes

    def sample(self) -> Batch | None:
        """Return the first batch before `prepare`, or `None` if this rank has none; `first` prepares it."""
        _, self._sample = next(self._source.read(self._numbered.take(1)), (None, None))
        return self._sample

    def first(self) -> Batch:
        """Return the batch that `sample` returned, prepared; a batch of zeros if there was none."""
        sample, self._sample = self._sample, None
        if sample is None:
            return tf.nest.map_structure(_zeros, self.spec)
        prepared = next(self._source.read(self._prepare(tf.data.Dataset.from_tensors(sample))))
        sizes = {len(tensor) for tensor in tf.nest.flatten(prepared) if isinstance(tensor, tf.Tensor)}
        if len(sizes) > 1:
            raise task_error(
                f"eval set {self._name!r}: the parts of a batch (x, y, sample_weight) hold {sorted(sizes)} examples, "
                f"they need equally many",
                remedy=UNLESS_BATCHED if self._batch_size is None else Remedy("", ""),
            )
        return prepared

    def numbered(self) -> Iterator[tuple[int, Batch]]:
        """Yield every batch of the set with its number."""
        for number, batch in self._source.read(self._numbered):
            yield int(number), batch

    def own(self) -> Iterator[Batch]:
        """Yield the batches of this rank, prepared."""
        return self._source.read(self._prepared)

    def leave_to_first(self) -> None:
        """Assign all batches to rank 0 and none to the other ranks."""
        self._source.leave_to_first()
        self._prepared = self._source.own(self._prepare)

    def fingerprint_of_files(self) -> str:
        """Return the digest of the current list of files."""
        return self._source.fingerprint_of_files()

    def parts(self, batch: Batch) -> Iterable[tuple[str, Any]]:
        """Yield inputs, labels and weights of a batch with their places."""
        return placed(batch)

    def arrays(self, batch: Batch) -> Iterable[NDArray[Any]]:
        """Yield the values of every tensor, including the components of ragged and sparse tensors."""
        return (tensor.numpy() for tensor in tf.nest.flatten(batch, expand_composites=True))

    def examples_in(self, batch: Batch) -> int:
        """Return the number of examples in a batch."""
        return examples_in(batch)

    def finite_rows(self, part: Any) -> list[NDArray[np.bool_]]:
        """Return a mask of finite rows for each tensor; an empty list if all values are finite."""
        if all(map(is_finite, tf.nest.flatten(part, expand_composites=True))):
            return []
        return [rows.numpy() for rows in finite_rows(part)]

    def _prepare(self, batches: Any) -> Any:
        """Map `prepare` over single elements. Batches keep their boundaries, since only the last one is short."""
        if self._prepare_element is None:
            return batches
        if self._batch_size is None:
            return batches.map(self._prepare_element, num_parallel_calls=tf.data.AUTOTUNE)
        elements = batches.unbatch().map(self._prepare_element, num_parallel_calls=tf.data.AUTOTUNE)
        is_ragged = any(isinstance(spec, tf.RaggedTensorSpec) for spec in tf.nest.flatten(batches.element_spec))
        return elements.ragged_batch(self._batch_size) if is_ragged else elements.batch(self._batch_size)


def _negatives(part: Any, kinds: str) -> int:
    """Return how many numbers of a part of a batch are negative, among tensors of these kinds of types."""
    arrays = [array_of(tensor) for tensor in tf.nest.flatten(part) if isinstance(tensor, tf.Tensor)]
    return sum(int(np.count_nonzero(array < 0)) for array in arrays if array.dtype.kind in kinds)


def array_of(tensor: Any) -> NDArray[Any]:
    """Return the values of a tensor, a variable or a number, also where numpy fails: a scalar tensor of bfloat16."""
    return np.asarray(tf.convert_to_tensor(tensor).numpy())


def repacked(structure: Any) -> Any:
    """Return a new structure of the same tensors for code of a user, which may take parts out of it, as by `pop`."""
    return tf.nest.map_structure(lambda tensor: tensor, structure)


def examples_in(batch: Batch) -> int:
    """Return the number of examples in a batch."""
    return int(tf.nest.flatten(batch)[0].shape[0])


def rows_of(tensor: Any) -> Any:
    """Return the number of rows of a dense, ragged or sparse tensor, within a trace, too."""
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows(out_type=tf.int64)
    if isinstance(tensor, tf.SparseTensor):
        return tensor.dense_shape[0]
    return tf.shape(tensor, out_type=tf.int64)[0]


def of_examples(number: int | None, spec: Any) -> Any:
    """Return the spec of a batch of this size. `None` allows any size, so a short last batch needs no second trace."""
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([number, *spec.shape[1:]], spec.dtype)
    return spec


def _zeros(spec: Any) -> Any:
    zeros = tf.zeros([dimension or 1 for dimension in spec.shape], spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_tensor(zeros, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype)
    return tf.sparse.from_dense(zeros) if isinstance(spec, tf.SparseTensorSpec) else zeros
