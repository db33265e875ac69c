"""Evaluate a model with the functions `load` and `predict` of the task."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from sidecar.evaluation.backend import Keep, States, Stream, Tick, forget
from sidecar.evaluation.backends.python.loaded_files import LoadedFiles
from sidecar.evaluation.data.array_source import ArraySource, finite_rows
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import parts_of, with_labels
from sidecar.evaluation.data.plain_arrays import plain_array, read_only
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.data.structure import as_arrays, copied, leaves, map_leaves
from sidecar.evaluation.data.third_part import naming_weights
from sidecar.evaluation.eval_loop import BatchOutput, evaluate_set
from sidecar.evaluation.eval_sets import EvalSets
from sidecar.evaluation.failures import EvaluationError, following_from_code
from sidecar.evaluation.measurement import Measurement, chosen
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.path_alias import require_present
from sidecar.evaluation.predictions_columns import PredictionsColumns, refused_column
from sidecar.evaluation.states import SetStates
from sidecar.evaluation.task import EvalSet, Task, call

_REMEDY: Final = "let the source return (x, y) alone, or ((x1, x2), y) for two inputs"
_WEIGHTS: Final = "weights"  # folder of the saved checkpoint, as with other frameworks


class PythonEvaluator:
    """Implement `sidecar.evaluation.backend.Evaluator` for plain Python.

    The content of the model is unknown, so the checkpoint stands for the restored values: the digest is that of all its
    bytes, and saving the weights means copying it.
    """

    def __init__(self, task: Task, shard: Shard, *, cache_bytes: int) -> None:
        assert task.load is not None, "the dispatcher checks it"
        assert task.predict is not None, "the dispatcher checks it"
        self._task, self._shard = task, shard
        self._load, self._predict = task.load, task.predict
        sources: dict[str, ArraySource] = {}

        def open_source(name: str, eval_set: EvalSet) -> ArraySource:
            sources[name] = ArraySource(name, eval_set, batch_size=task.batch_size, shard=shard)
            return sources[name]

        self._sets = EvalSets(task, shard, open_source, cache_bytes=cache_bytes, nonfinite="allow")
        with following_from_code():
            self._sets.expect_weights(_REMEDY, _first_prepared(task, sources))
        with following_from_code():
            self._measurement = Measurement(chosen(task))
        self._columns = PredictionsColumns(task.predictions, _column) if task.predictions else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="digest")
        self._model: Any = None
        self._path = Path()
        self._files = LoadedFiles(self._path, {})
        self.traces, self.builds, self.loads_graphs = 0, 0, False

    def read(self, tick: Tick, evaluated: int = 0, most: int | None = None) -> tuple[Stream, ...]:
        """Choose the eval sets that take part, and read those that have not been read yet."""
        return self._sets.read(tick, evaluated, most)

    def differs(self) -> bool:
        """Return whether a sample of the data differs from what was read."""
        return self._sets.differs()

    def restore(self, path: str) -> Callable[[], None]:
        """Return a function that calls the task's `load`, in the thread of its caller, which `load` may depend on."""
        self._model = None  # memory may not be sufficient for two models
        return partial(self._restore, path)

    def _restore(self, path: str) -> None:
        try:
            self._files = LoadedFiles.find(Path(path))
            self._model = call("Task(load=…)", self._load, path)
        except Exception as error:
            require_present(path, error)
            raise
        if self._model is None:
            raise EvaluationError("task_error", "Task(load=…) must return a model, found None")
        self._path = Path(path)
        self.builds += 1

    def digest(self) -> Callable[[], str]:
        """Begin to hash all bytes of the checkpoint. Return a function that waits for the hex digest.

        The function raises `EvaluationError` if the checkpoint has changed since it was loaded.
        """
        files, hashed = self._files, self._thread.submit(self._files.digest)

        def wait() -> str:
            digest = hashed.result()
            files.require_unchanged()
            return digest

        return wait

    def outside(self) -> Mapping[str, str]:
        """Return an empty dict: a model depends only on its checkpoint and on the task's code."""
        return {}

    def layout(self) -> str:
        """Return names, kinds and sizes of all states."""
        return self._sets.layout(self._states)

    def evaluate(self, tick: Tick, keep: Keep = forget) -> States:
        """Sum metric states over the batches of this rank, and pass on the rows that the task saves."""
        return {reader.name: self._evaluate(reader, tick, keep) for reader in self._sets.chosen}

    def begins_again(self, reduced: States) -> bool:
        """Return False: which metrics are updated in turn is known before the first evaluation."""
        del reduced
        return False

    def save_weights(self, folder: Path) -> None:
        """Copy the checkpoint to `folder/weights/<its name>`."""
        copy = folder / _WEIGHTS / self._path.name
        copy.parent.mkdir()
        if self._path.is_dir():
            shutil.copytree(self._path, copy)
        else:
            shutil.copyfile(self._path, copy)

    def compute(self, reduced: States) -> Mapping[str, MetricResult]:
        """Return the final numbers, by eval set."""
        return {reader.name: self._compute(reader, reduced[reader.name]) for reader in self._sets.chosen}

    def _compute(self, reader: EvalSetReader, states: SetStates) -> MetricResult:
        numbers = self._measurement.compute(states)
        return replace(numbers, notes=numbers.notes + (reader.third_part.notes if reader.third_part else ()))

    def _evaluate(self, reader: EvalSetReader, tick: Tick, keep: Keep) -> SetStates:
        states = self._states(reader)
        return evaluate_set(
            reader,
            states,
            run=partial(self._run, reader),
            add=partial(self._add, states),
            finish=lambda: None,
            shard=self._shard,
            tick=tick,
            keep=keep,
        )

    def _run(self, reader: EvalSetReader, batch: Batch, _number: int, _first: int | None) -> BatchOutput:
        x, _, _ = parts_of(batch)
        # The arrays of a batch are used again for the next checkpoint, and `predict` may change its input.
        predicted = call("Task(predict=…)", self._predict, self._model, copied(x))
        predictions = _converted(predicted, reader.examples_in(batch))
        batch = map_leaves(read_only, batch)
        columns = {} if self._columns is None else self._columns.columns(batch, predictions)
        _, y, weights = with_labels(batch)
        with naming_weights(self._weights_remedy):
            arrays = self._measurement.arrays(y, predictions, weights, reader.examples_in(batch))
        return BatchOutput(arrays, finite_rows(predictions), columns)

    def _add(self, states: SetStates, arrays: list[list[NDArray[Any]]], firsts: Sequence[int | None]) -> None:
        with naming_weights(self._weights_remedy):
            self._measurement.add(states, arrays, firsts)

    def _weights_remedy(self) -> str:
        return _REMEDY if any(reader.third_part and reader.third_part.notes for reader in self._sets.chosen) else ""

    def _states(self, reader: EvalSetReader) -> SetStates:
        return self._measurement.states(self._sets.info(reader))


def _first_prepared(task: Task, sources: Mapping[str, ArraySource]) -> dict[str, Batch]:
    """Return the first batch of each set whose batches are not seen by all workers, by the name of the set."""
    unseen = {
        name: source
        for name, source in sources.items()
        if task.sets()[name].prepare is not None or source.sharding == "own"
    }
    return {name: batch for name, source in unseen.items() for batch in source.first_prepared()}


def _converted(predictions: Any, examples: int) -> Any:
    """Return predictions as arrays; raises `EvaluationError` unless they have a row for each example."""
    if predictions is None:
        raise EvaluationError("task_error", "Task(predict=…) must return predictions, found None")
    try:
        arrays = as_arrays(predictions)
    except ValueError as error:
        raise EvaluationError("task_error", f"Task(predict=…) does not return an array: {error}") from None
    for array in leaves(arrays):
        if array.dtype.hasobject or not array.ndim or len(array) != examples:
            raise EvaluationError(
                "task_error",
                f"Task(predict=…) must return numbers with one row for each of {examples} examples, found "
                f"{array.dtype} {array.shape}",
            )
    return map_leaves(read_only, copied(arrays))  # a model may return the same array for every batch


def _column(name: str, column: Any) -> NDArray[Any]:
    try:
        array = plain_array(column)
    except ValueError as error:
        raise refused_column(name, f"is not an array: {error}") from None
    if array.dtype.hasobject or array.dtype.kind in "US":
        raise refused_column(name, "holds text or objects: save numbers, such as an index")
    if not array.ndim:
        raise refused_column(name, "is one number for a batch: save one row for each example")
    return array
