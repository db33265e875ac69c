"""Evaluate a model with the functions `load` and `predict` of the task.

`rank_evaluation` calls the methods of `PythonEvaluator`: `read` reads the eval sets, `restore` calls `load`, often
while they are read, and `evaluate` calls `predict` for each batch of this rank. Metrics of `sidecar.metrics` take its
arrays.
"""

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation import repeatability
from sidecar.evaluation.backend import (
    FROM_THE_BEGINNING,
    Resumption,
    SaveRows,
    States,
    Stream,
    Tick,
    discard_rows,
)
from sidecar.evaluation.backends.python.file_kinds import remedy_for
from sidecar.evaluation.backends.python.loaded_files import LoadedFiles
from sidecar.evaluation.batch_dependence import MODEL, UNTESTED, BatchDependence
from sidecar.evaluation.data.array_source import ArraySource, finite_rows
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import parts_of, with_labels
from sidecar.evaluation.data.plain_arrays import plain_array, read_only
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.data.structure import as_arrays, copied, leaves, map_leaves
from sidecar.evaluation.data.third_part import naming_weights
from sidecar.evaluation.eval_loop import BatchOutput, evaluate_set
from sidecar.evaluation.eval_sets import EvalSets, open_readers
from sidecar.evaluation.failures import following_from_code, task_error
from sidecar.evaluation.first_batch import FirstBatch, OfParts, tried
from sidecar.evaluation.kept_values import KeptValues
from sidecar.evaluation.measurement import Measurement, chosen
from sidecar.evaluation.metrics.in_turn import ResultsInTurn
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.npy_table import plain_column, refused_column
from sidecar.evaluation.output_comparison import no_outputs, summary
from sidecar.evaluation.path_alias import require_present
from sidecar.evaluation.predictions_columns import PredictionsColumns
from sidecar.evaluation.repeatability import RandomDraws
from sidecar.evaluation.row_comparison import (
    FEW,
    few_of,
    halves_of,
    have_alike_rows,
    is_telling,
    rows_at,
    rows_differ,
    told_apart,
)
from sidecar.evaluation.states import SetStates
from sidecar.evaluation.task import EvalSet, Task, call
from sidecar.system.plain_text import listed

_REMEDY: Final = "let the source return (x, y) alone, or ((x1, x2), y) for two inputs"
_LABELS: Final = "Let the source return both, such as lambda: (x, y), and (x, x) for an autoencoder"
_LOADED_TWICE_BYTES: Final = 1 << 28
"""Largest checkpoint that is loaded twice to find numbers which `load` draws."""

_NAMES_SHOWN: Final = 5
_WEIGHTS: Final = "weights"  # folder of the saved checkpoint, as with other frameworks
_OF_FILES: Final = (
    ". If it writes a file of a fixed name, other workers overwrite it: write it into tempfile.TemporaryDirectory()"
)


class PythonEvaluator:
    """Implement `sidecar.evaluation.backend.Evaluator` for plain Python.

    The content of the model is unknown, so the checkpoint stands for the restored values: the digest is that of all its
    bytes, and saving the weights means copying it.
    """

    traces = 0
    gpu_bytes = 0  # the model is unknown, and so is its memory
    loads_graphs = False
    outputs_are_new = True

    @classmethod
    def build(cls, task: Task, shard: Shard, *, cache_bytes: int) -> Self:
        """Open the data, and read the first batch of each eval set."""
        sources: dict[str, ArraySource] = {}

        def open_source(name: str, eval_set: EvalSet) -> ArraySource:
            source = ArraySource(name, eval_set, batch_size=task.batch_size, shard=shard, takes_objects=True)
            sources[name] = source
            return source

        readers = open_readers(task, shard, open_source, cache_bytes=cache_bytes, nonfinite="allow")
        sets = EvalSets(task, shard, readers)
        with following_from_code():
            sets.expect_weights(_REMEDY, _first_prepared(task, sources), task.eval_sets)
        with following_from_code():
            evaluator = cls(task, shard, sets, sources)
            evaluator.choose_in_turn()
        return evaluator

    def __init__(
        self,
        task: Task,
        shard: Shard,
        sets: EvalSets[EvalSetReader],
        sources: Mapping[str, ArraySource],
    ) -> None:
        assert task.load is not None, "the dispatcher checks it"
        self._load = task.load
        self._task, self._shard, self._sets = task, shard, sets
        self._sources = sources
        self._measurements = {name: Measurement(chosen(task.of_set(name))) for name in task.eval_sets}
        self._columns = PredictionsColumns(task.predictions, _column) if task.predictions else None
        self._draws = RandomDraws(repeatability.seed, repeatability.generators)
        self._first_batch = FirstBatch(BatchDependence(self._names), _require_equal)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="digest")
        self._model: Any = None
        self._second: Any = None  # another model of the same checkpoint, until it was compared
        self._files = LoadedFiles(Path(), {})
        self._kept = KeptValues(task)
        self.builds = 0

    def choose_in_turn(self) -> None:
        """Let worker 0 evaluate the sets whose metrics are updated in turn. It is the first call of any method."""
        self._task.require_in_turn(self._names)
        self._sets.leave_to_first(self._in_turn)

    def read(self, tick: Tick, evaluated: int = 0, most: int | None = None) -> tuple[Stream, ...]:
        """Choose the eval sets that take part, and read those that have not been read yet."""
        return self._sets.read(tick, evaluated, most)

    def differs(self, changed: bool) -> bool:
        """Return whether a sample of the data differs from what was read."""
        return changed or self._sets.differs()

    def restore(self, path: str) -> Callable[[], None]:
        """Return a function that calls the task's `load`, in the thread of its caller, which `load` may depend on."""
        self._kept.set_back(self._model)
        self._model = self._second = None  # memory may not be sufficient for two models
        return partial(self._restore, path)

    def _restore(self, path: str) -> None:
        try:
            self._files = LoadedFiles.find(Path(path))
            repeatability.seed("", "load", 0)  # what a new model draws does not matter, but must be alike on all ranks
            self._model = call("Task(load=…)", self._load, path)
            if self.builds == 0 and self.weights_bytes <= _LOADED_TWICE_BYTES:
                repeatability.seed("", "load", 1)
                self._second = tried(self._load, path)
        except Exception as error:
            require_present(path, error)
            error.remedy = remedy_for(Path(path), error)  # type: ignore[attr-defined]
            raise
        if self._model is None:
            raise task_error("Task(load=…) must return a model, found None")
        self.builds += 1

    def digest(self) -> Callable[[], str]:
        """Begin to hash all bytes of the checkpoint. Return a function that waits for the hex digest.

        The function raises `EvaluationError` if the checkpoint has changed since it was loaded.
        """
        files, hashed = self._files, self._thread.submit(self._files.digest)
        self._draws.weights_digest = hashed.result

        def wait() -> str:
            digest = hashed.result()
            files.require_unchanged()
            return digest

        return wait

    @property
    def weights_bytes(self) -> int:
        """Number of bytes of the checkpoint's files."""
        return sum(version.size for version in self._files.versions.values())

    def outside(self) -> Mapping[str, str]:
        """Return an empty dict: a model depends only on its checkpoint and on the task's code."""
        return {}

    def outputs(self) -> NDArray[np.float64]:
        """Return a summary of the predictions for the first batch of each set that all ranks read alike."""
        outputs = no_outputs()
        for place, reader in enumerate(self._sets.chosen):
            batch = None if reader.sharding == "own" else next(self._sources[reader.name].first_prepared(), None)
            if batch is not None:
                if self._shard.rank:  # what a model keeps of the first examples that it sees then differs from rank 0
                    *_, last = told_apart(examples := reader.examples_in(batch), FEW)
                    if last.start < examples:
                        tried(partial(self._predict_part, batch, examples), last)
                output = self._draws.run(reader.name, 0, partial(self._run, reader, batch))
                outputs[place] = summary(self._measurements[reader.name].predictions(output.arrays))
        return outputs

    def layout(self) -> str:
        """Return names, kinds and sizes of all states."""
        return self._sets.layout(self._states)

    def evaluate(
        self, tick: Tick, keep: SaveRows = discard_rows, resumption: Resumption = FROM_THE_BEGINNING
    ) -> States:
        """Sum metric states over the batches of this rank, and pass on the rows that the task saves."""
        evaluate = partial(self._evaluate, tick=tick, keep=keep)
        return {
            reader.name: resumption.kept(reader.name, evaluate(reader, resumption.taken.get(reader.name)))
            for reader in self._sets.chosen
        }

    def restored_model(self) -> Any:
        """Return what `load` returned."""
        return self._model

    def begins_again(self, reduced: States) -> bool:
        """Return False: which metrics are updated in turn is known before the first evaluation."""
        del reduced
        return False

    def save_weights(self, folder: Path) -> None:
        """Copy the checkpoint to `folder/weights/<its name>`."""
        source = self._files.path
        copy = folder / _WEIGHTS / source.name
        copy.parent.mkdir()
        if source.is_dir():
            shutil.copytree(source, copy)
        else:
            shutil.copyfile(source, copy)

    def compute(self, reduced: States) -> Mapping[str, MetricResult]:
        """Return the final numbers, by eval set."""
        given = (reader for reader in self._sets.chosen if reader.name in reduced)
        return {reader.name: self._compute(reader, reduced[reader.name]) for reader in given}

    @property
    def _names(self) -> list[str]:
        """The names of all metrics of all sets, each once."""
        return list(dict.fromkeys(name for each in self._measurements.values() for name in each.names))

    def _in_turn(self, eval_set: str) -> dict[str, str]:
        """Return the metrics in turn of a set, with the reason; empty if the task asks for it."""
        measurement = self._measurements[eval_set]
        wanted = {name: "" for name in measurement.names if self._task.wants_in_turn(name)}
        return wanted | measurement.in_turn

    def _compute(self, reader: EvalSetReader, states: SetStates) -> MetricResult:
        dependence = self._first_batch.dependence
        dependence.refuse(states, reader.name, reader.sharding)
        self._draws.refuse(states, reader.name, reader.sharding)
        numbers = self._measurements[reader.name].compute(states)
        in_turn = ResultsInTurn(self._in_turn(reader.name)).notes({})
        third_part = reader.third_part.notes if reader.third_part else ()
        notes = *numbers.notes, *dependence.notes(states), *self._draws.notes(states), *in_turn, *third_part
        return replace(numbers, notes=notes)

    def _evaluate(self, reader: EvalSetReader, taken: SetStates | None, *, tick: Tick, keep: SaveRows) -> SetStates:
        states = self._states(reader)
        contents = partial(self._contents, reader)
        first_batch = self._first_batch.of(reader.name, reader.batches, self._shard.world_size, contents)
        compare: Callable[[], None] | None = None

        def run(batch: Batch, number: int, first: int | None) -> BatchOutput:
            nonlocal compare
            place = reader.digest(batch) if first is None else number
            run_again = partial(self._draws.run, reader.name, place, partial(self._run, reader, batch))
            output = run_again()
            examples = reader.examples_in(batch)
            parts = partial(self._find_dependence, reader, batch, output)

            def predict(places: slice) -> BatchOutput:
                return self._draws.run(reader.name, place, partial(self._predict_part, batch, examples, places))

            if not number:
                self._require_order_of_columns(reader, batch, examples)
            first_batch.see(output, number, examples, again=run_again, parts=parts, predict=predict)
            compare = compare or partial(self._compare_with_second, predict, examples)
            return output

        def finish() -> None:
            first_batch.finish(states)
            if compare is not None:
                compare()

        evaluated = evaluate_set(
            reader,
            states,
            run=run,
            add=partial(self._add, reader, states),
            finish=finish,
            shard=self._shard,
            tick=tick,
            keep=keep,
            taken=taken,
        )
        self._draws.add_to(evaluated, reader.name)
        return evaluated

    def _run(self, reader: EvalSetReader, batch: Batch) -> BatchOutput:
        examples = reader.examples_in(batch)
        predictions = self._predictions(batch, examples)
        batch = map_leaves(read_only, batch)
        columns = {} if self._columns is None else self._columns.columns(batch, predictions)
        return BatchOutput(self._arrays(reader, batch, predictions, examples), finite_rows(predictions), columns)

    def _predictions(self, batch: Batch, examples: int) -> Any:
        x, _, _ = parts_of(batch)
        # The arrays of a batch are used again for the next checkpoint, and `predict` may change its input.
        assert self._task.predict is not None, "the dispatcher checks it"
        try:
            return _converted(
                call("Task(predict=…)", self._task.predict, self._model, copied(x)), examples, self._shard
            )
        except Exception as error:
            names = next((source.columns for source in self._sources.values() if source.columns), [])
            if names and any(word in str(error).lower() for word in ("column", "dataframe")):
                error.remedy = (  # type: ignore[attr-defined]
                    f"Arrays have no names of columns: let predict make a table, pandas.DataFrame(x, columns={names!r})"
                )
            raise

    def _arrays(self, reader: EvalSetReader, batch: Batch, predictions: Any, examples: int) -> list[NDArray[Any]]:
        _, y, weights = with_labels(batch, _LABELS)
        with naming_weights(self._weights_remedy):
            return self._measurements[reader.name].arrays(y, predictions, weights, examples)

    def _predict_part(self, batch: Batch, examples: int, places: slice) -> BatchOutput:
        """Let the model predict for some examples of a batch alone."""
        size = len(range(examples)[places])
        predictions = self._predictions(map_leaves(lambda array: array[places], batch), size)
        return BatchOutput(list(leaves(predictions)), [], {})

    def _require_order_of_columns(self, reader: EvalSetReader, batch: Batch, examples: int) -> None:
        """Raise `EvaluationError` if a model of scikit-learn gets columns in another order than it has learned.

        It warns that it gets no names, which arrays do not have, unless `predict` makes a table of them.
        """
        learned = [str(name) for name in getattr(self._model, "feature_names_in_", ())]
        given = self._sources[reader.name].columns
        if given == learned or sorted(given) != sorted(learned):
            return
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            tried(partial(self._predict_part, batch, examples), slice(0, examples))
        if any("does not have valid feature names" in str(warning.message) for warning in found):
            raise task_error(
                f"eval set {reader.name!r} has the columns {listed(given, _NAMES_SHOWN)}; the model has learned "
                f"{listed(learned, _NAMES_SHOWN)}, and arrays have no names: let the function of the eval set return "
                f"x[{learned!r}]"
            )

    def _compare_with_second(self, predict: Callable[[slice], BatchOutput], examples: int) -> None:
        """Raise `EvaluationError` if another model of the same checkpoint, which sees other examples first, differs.

        Models that take whole batches only are given the batch.
        """
        second, self._second = self._second, None
        if second is None:
            return
        first, _, last = told_apart(examples, FEW)
        one = tried(predict, first) if first.stop else None
        places = slice(0, examples) if one is None else first
        one = predict(places) if one is None else one
        used, self._model = self._model, second
        self._kept.set_back(used)
        try:
            if places == first:
                predict(last)
            other = predict(places)
        finally:
            self._kept.set_back(second)
            self._model = used
        if rows_differ(one.arrays, [other.arrays]):
            self._files.require_unchanged()
            raise task_error(
                "a second model that Task(load=…) makes of the same checkpoint, and that sees other examples first, "
                "gives other predictions: load draws numbers that the checkpoint lacks, such as those of "
                "default_rng() or random.Random() without a seed, or predict keeps something of the first examples, "
                "such as their mean. Save such numbers in the checkpoint and read them in load, or write the seed of "
                "training, such as default_rng(7)"
            )

    def _find_dependence(self, reader: EvalSetReader, batch: Batch, output: BatchOutput, number: int) -> OfParts:
        """Return what depends on the division of a batch."""
        examples = reader.examples_in(batch)
        halves, few = halves_of(examples), few_of(examples, number)
        measurement = self._measurements[reader.name]
        predictions = measurement.predictions(output.arrays)
        is_known = is_telling(predictions)
        if halves is None or few is None:
            return OfParts(set(), is_known)
        found = measurement.depending(output.arrays)
        if self._draws.is_drawn(reader.name):  # parts draw other numbers
            return OfParts(found, is_known)
        for places in (few, halves) if few != halves else (halves,):
            if (parts := tried(partial(self._arrays_of_parts, reader, batch), places)) is None:
                continue
            rows = [measurement.predictions(arrays) for arrays in parts]
            compared = rows_at(predictions, places, examples)
            if compared is not None and have_alike_rows(compared, rows):
                differs = rows_differ(compared, rows)
                return OfParts(found | ({MODEL} if differs else set()), is_known, are_compared=True)
            if places == halves:
                return OfParts(found | measurement.differing(output.arrays, parts), is_known)
        return OfParts(found | {UNTESTED}, is_known)

    def _arrays_of_parts(
        self, reader: EvalSetReader, batch: Batch, places: Sequence[slice]
    ) -> list[list[NDArray[Any]]]:
        """Return what metrics need of parts of a batch, predicted on their own."""
        arrays = []
        for place in places:
            part = map_leaves(lambda array, place=place: read_only(array[place]), batch)
            size = len(range(reader.examples_in(batch))[place])
            arrays.append(self._arrays(reader, part, self._predictions(part, size), size))
        return arrays

    def _add(
        self,
        reader: EvalSetReader,
        states: SetStates,
        arrays: list[list[NDArray[Any]]],
        firsts: Sequence[int | None],
    ) -> None:
        with naming_weights(self._weights_remedy):
            self._measurements[reader.name].add(states, arrays, firsts)

    def _contents(self, reader: EvalSetReader, arrays: list[NDArray[Any]]) -> dict[str, str]:
        with naming_weights(self._weights_remedy):
            return self._measurements[reader.name].contents(arrays)

    def _weights_remedy(self) -> str:
        return _REMEDY if any(reader.third_part and reader.third_part.notes for reader in self._sets.chosen) else ""

    def _states(self, reader: EvalSetReader) -> SetStates:
        own = self._measurements[reader.name].states(self._sets.info(reader))
        return own | self._first_batch.dependence.states() | self._draws.states(reader.name)


def _require_equal(one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]], when: str) -> None:
    advice = "Draw from numpy.random or random, whose generators are seeded, and let predict keep nothing"
    repeatability.require_equal(one, other, when, advice)


def _first_prepared(task: Task, sources: Mapping[str, ArraySource]) -> dict[str, Batch]:
    """Return the first batch of each set whose batches are not seen by all workers, by the name of the set."""
    unseen = {
        name: source
        for name, source in sources.items()
        if task.sets()[name].prepare is not None or source.sharding == "own"
    }
    return {name: batch for name, source in unseen.items() for batch in source.first_prepared()}


def _converted(predictions: Any, examples: int, shard: Shard) -> Any:
    """Return predictions as arrays; raises `EvaluationError` unless they have a row for each example."""
    if predictions is None:
        raise task_error("Task(predict=…) must return predictions, found None")
    try:
        arrays = as_arrays(predictions)
    except ValueError as error:
        padded = (
            ". Let it pad the rows to the longest possible one, such as with NaN, or write "
            "Task(evaluate={'name': lambda model: {'number': …}})"
        )
        is_uneven = "inhomogeneous" in str(error)
        raise task_error(f"Task(predict=…) does not return an array: {error}{padded if is_uneven else ''}") from None
    for array in leaves(arrays):
        if array.dtype.hasobject and array.size and all(isinstance(item, str) for item in array.ravel().tolist()):
            raise task_error(
                f"Task(predict=…) returns texts, such as {array.flat[0]!r:.40}: return their numbers, "
                "np.searchsorted(model.classes_, texts)" + ("[:, 0]" if array.ndim > 1 else "")
            )
        if array.dtype.hasobject or not array.ndim or len(array) != examples:
            raise task_error(
                f"Task(predict=…) must return numbers with one row for each of {examples} examples, found "
                f"{array.dtype} {array.shape}{_OF_FILES if shard.world_size > 1 else ''}"
            )
    return map_leaves(read_only, copied(arrays))  # a model may return the same array for every batch


def _column(name: str, column: Any) -> NDArray[Any]:
    try:
        array = plain_array(column)
    except ValueError as error:
        raise refused_column(name, f"is not an array: {error}") from None
    return plain_column(name, array)
