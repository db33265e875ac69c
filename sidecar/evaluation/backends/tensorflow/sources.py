"""Number the batches of a task's source: a dataset, arrays, an iterator, or files of records.

Batch b belongs to rank b mod n. Batches are formed before `prepare` is applied, from the same examples for any n.

`data.DatasetSource` makes a `Source` for its eval set. The source calls the function of the task once, turns what it
returns into a `tf.data.Dataset`, and yields the batches of this rank with their numbers.
"""

import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.generator_source import GeneratorSource, in_order, is_sequence
from sidecar.evaluation.data.file_sources import RecordFiles
from sidecar.evaluation.data.opened_files import DATA_FILE
from sidecar.evaluation.data.plain_arrays import MASKED, is_masked
from sidecar.evaluation.data.shard import Shard, all_to_first
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.remedy import UNLESS_BATCHED, Remedy
from sidecar.evaluation.task import EvalSet, call
from sidecar.protocol.records import Sharding

Change = Callable[[Any], Any]
"""Transform a dataset into another one."""

_DIFFERENT_SHAPES: Final = re.compile("Cannot add tensor to the batch|Cannot batch tensors with different shapes")
_ACCEPTED: Final = (
    "a tf.data.Dataset, numpy arrays x, (x, y) or (x, y, sample_weight), an iterator of examples, a Keras PyDataset "
    "(Sequence), or files (sidecar.data)"
)


class Source:
    """Provide the batches of one eval set on one rank.

    `sharding` says how they are divided among the ranks. `batch_size` is None if the source yields batches itself.

    Raises `EvaluationError` for a source that cannot be evaluated.
    """

    def __init__(self, name: str, eval_set: EvalSet, *, batch_size: int | None, shard: Shard, threads: int) -> None:
        self._name, self.batch_size, self._shard = name, batch_size, shard
        self._options = tf.data.Options()
        self._options.deterministic = True
        self._options.threading.private_threadpool_size = threads
        self._files: RecordFiles | None = None
        self._generated: GeneratorSource | None = None
        self._paths: list[str] = []
        self.notes: tuple[str, ...] = ()
        self.sharding: Sharding = "own" if eval_set.shards_itself else "batches"
        data = self._call(eval_set)
        if isinstance(data, RecordFiles):
            self._files = data
            self._paths = _find(name, data)
            if data.by == "file" and self.sharding == "batches" and len(self._paths) >= shard.world_size:
                self.sharding = "files"
            self._dataset = self._batched(self._records(self._paths))
        else:
            self._dataset = self._batched(self._opened(data, eval_set))

    def leave_to_first(self) -> None:
        """Give all batches in order to rank 0, and none to the other ranks. Not for a set that divides itself."""
        self._shard = all_to_first(self._shard)
        self.sharding = "batches"

    def numbered(self) -> Any:
        """Return every batch of the set with its number. If the set divides itself, return the batches of this rank."""
        return self._pieces(lambda numbered: numbered)

    def own(self, prepare: Change) -> Any:
        """Return the batches of this rank, prepared."""
        rank, world_size = self._shard.rank, self._shard.world_size

        def change(numbered: Any) -> Any:
            if self.sharding == "batches":
                numbered = numbered.filter(lambda number, _: number % world_size == rank)
            return prepare(numbered.map(lambda _, batch: batch))

        return self._pieces(change, own_files=self.sharding == "files")

    def read(self, dataset: Any) -> Iterator[Any]:
        """Yield the elements of a dataset. An error of a file or an iterator names its source."""
        try:
            yield from dataset.prefetch(2)
        except tf.errors.OpError as error:
            if _DIFFERENT_SHAPES.search(error.message):
                raise task_error(
                    f"eval set {self._name!r}: its examples have different shapes, so they cannot be batched: pad them "
                    f"to one shape, or ",
                    remedy=Remedy("give Task(batch_size=None) and batch them", "batch them")
                    + f" with padded_batch or ragged_batch ({error.message[:200]})",
                ) from error
            if self._generated is not None and self._generated.problem is not None:
                raise self._generated.problem from None
            self._find_damage()
            raise

    def fingerprint_of_files(self) -> str:
        """Return the digest of the present list of files: their sizes, and their names below their common folder."""
        assert self._files is not None, "only files have a list"
        paths = _find(self._name, self._files)
        start = os.path.commonprefix(paths).rfind("/") + 1  # noqa: RUF071 - cut at a slash here, so that a URL stays one
        names_and_sizes = [(path[start:], tf.io.gfile.stat(path).length) for path in paths]
        return hashlib.blake2b(repr(names_and_sizes).encode(errors="surrogateescape"), digest_size=16).hexdigest()

    def _pieces(self, change: Change, *, own_files: bool = False) -> Any:
        """Return numbered batches, transformed by `change`.

        Files are read one by one, so that only the last batch of a file may be short. Batch j of file i gets the number
        i + j, so that files of a single batch go to different ranks.
        """
        if self._files is None or self._files.by == "batch":
            return change(self._dataset.enumerate()).with_options(self._options)
        rank, world_size = (self._shard.rank, self._shard.world_size) if own_files else (0, 1)
        paths = self._paths[rank::world_size]

        def piece(number: Any, path: Any) -> Any:
            return change(self._batched(self._records(path)).enumerate(number))

        files = tf.data.Dataset.from_tensor_slices((np.arange(len(paths), dtype=np.int64), paths))
        return files.flat_map(piece).with_options(self._options)

    def _records(self, paths: Any) -> Any:
        assert self._files is not None, "only files hold records"
        return tf.data.TFRecordDataset(paths, self._files.compression)

    def _call(self, eval_set: EvalSet) -> Any:
        return call(f"eval set {self._name!r}", eval_set.source, *([self._shard] if eval_set.shards_itself else []))

    def _opened(self, data: Any, eval_set: EvalSet) -> Any:
        data = _with_tuples(tuple(data) if isinstance(data, list) else data)
        if isinstance(data, tuple | dict | np.ndarray) or tf.is_tensor(data):
            self._require_equally_many(data)
            if any(map(is_masked, tf.nest.flatten(data))):
                raise task_error(f"eval set {self._name!r}: {MASKED}")
            data = tf.data.Dataset.from_tensor_slices(data)  # copied once into tensors, not into a graph
        elif is_sequence(data):
            self.batch_size = None  # its elements are batches, also if the task has a batch size
            data = self._generate(in_order(data), lambda: in_order(self._call(eval_set)))
        elif isinstance(data, Iterator):
            data = self._generate(data, lambda: self._call(eval_set))
        if not isinstance(data, tf.data.Dataset):
            line = (
                ": write lambda: iter(…), or lambda: map(tuple, …) if its batches are lists"
                if isinstance(data, Iterable)
                else ""
            )
            raise task_error(f"eval set {self._name!r}: expected {_ACCEPTED}, found {type(data).__name__}{line}")
        if data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise task_error(f"eval set {self._name!r} repeats for ever: remove .repeat(), or add .take(n)")
        self.notes = _notes_on(data, is_part=self.sharding == "own")
        return data

    def _generate(self, iterator: Iterator[Any], make: Callable[[], Iterator[Any]]) -> Any:
        self._generated = GeneratorSource(self._name, iterator, make, is_batched=self.batch_size is None)
        return self._generated.dataset

    def _require_equally_many(self, data: Any) -> None:
        arrays = [array for array in tf.nest.flatten(data) if getattr(array, "shape", None)]
        lengths = [int(array.shape[0]) for array in arrays]
        if len(set(lengths)) > 1:
            raise task_error(
                f"eval set {self._name!r}: its arrays (x, y, sample_weight) need equally many examples, found "
                f"{', '.join(map(str, lengths))}"
            )

    def _batched(self, dataset: Any) -> Any:
        if self.batch_size is not None:
            return dataset.batch(self.batch_size)
        if any(getattr(spec, "shape", None) == () for spec in tf.nest.flatten(dataset.element_spec)):
            raise task_error(
                f"eval set {self._name!r} yields single examples, {dataset.element_spec}",
                remedy=UNLESS_BATCHED,
            )
        return dataset

    def _find_damage(self) -> None:
        """Raise `EvaluationError` with the name of a file that cannot be read. TensorFlow names only a place in it."""
        for path in self._paths:
            try:
                for _ in self._records(path).batch(1024):
                    pass
            except tf.errors.OpError as error:
                reason = error.message.split("}} ")[-1].partition(" [Op:")[0]
                compression = self._files.compression if self._files is not None else None
                raise task_error(
                    f"eval set {self._name!r}: {path} cannot be read as TFRecords with compression={compression!r}: "
                    f"{reason}"
                ) from None


def _find(name: str, files: RecordFiles) -> list[str]:
    """Return the sorted paths. Raises `EvaluationError` for a pattern without files, or a path given twice."""
    all_paths: list[str] = []
    for pattern in files.patterns:
        paths = tf.io.gfile.glob(os.path.expanduser(pattern))  # noqa: PTH111 - it may be a URL
        if not paths:
            where = pattern if "://" in pattern else os.path.abspath(pattern)  # noqa: PTH100
            raise task_error(f"eval set {name!r}: tfrecords finds no file {where}")
        all_paths += paths
    path, times = Counter(all_paths).most_common(1)[0]
    if times > 1:
        raise task_error(f"eval set {name!r}: tfrecords is given {path} {times} times")
    for path in all_paths:
        sys.audit(DATA_FILE, path)
    return sorted(all_paths)


def _notes_on(dataset: Any, *, is_part: bool) -> tuple[str, ...]:
    """Return notes if a dataset, or one that it is made of, repeats its examples, or drops some.

    `is_part`: other ranks have other examples, and all must return the same note.
    """
    datasets, notes = [dataset], []
    for each in datasets:
        datasets += each._inputs()  # noqa: SLF001 - tf.data has no other way to the parts of a pipeline
        kind = type(each).__name__
        times = tf.get_static_value(each._count) if kind == "_RepeatDataset" else 1  # noqa: SLF001
        if times is not None and times > 1:
            notes.append(f"the data has examples {times} times, and each counts as often: repeat({times})")
        if kind == "_IgnoreErrorsDataset":
            notes.append("examples that cannot be read or mapped are left out, if there are any: ignore_errors()")
        parts = (getattr(each, name, None) for name in ("_drop_remainder", "_batch_size"))
        drops, size = (None if part is None else tf.get_static_value(part) for part in parts)
        if not drops or size is None:
            continue
        count = int(each._inputs()[0].cardinality())  # noqa: SLF001
        dropped = count % int(size) if count >= 0 and not is_part else None
        if dropped != 0:
            how_many = "examples, if its last batch is short" if dropped is None else f"{dropped} of {count} examples"
            notes.append(f"the data leaves out {how_many}: batch(…, drop_remainder=True) drops the last ones")
    return tuple(dict.fromkeys(notes))


def _with_tuples(data: Any) -> Any:
    """Return the data with tuples for lists of arrays, as Keras reads them: one array for each input or output."""
    if type(data) is dict:
        return {name: _with_tuples(part) for name, part in data.items()}
    is_several = isinstance(data, list) and any(getattr(part, "shape", None) for part in data)
    return tuple(map(_with_tuples, data)) if is_several or type(data) is tuple else data
