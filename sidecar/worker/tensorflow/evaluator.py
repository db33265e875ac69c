"""A built task: model, data and traced steps that stay warm between checkpoints."""

import gc
import glob
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from sidecar.worker import nonfinite
from sidecar.worker.backend import Keep, Rows, States, Stream, Tick, forget
from sidecar.worker.failures import EvaluationError
from sidecar.worker.flow import EXAMPLES
from sidecar.worker.hdf5 import require_readable, require_self_contained
from sidecar.worker.metrics.metric import Extent, Numbers
from sidecar.worker.shard import Shard
from sidecar.worker.states import ExactSum, SetStates
from sidecar.worker.task import Task, call
from sidecar.worker.tensorflow.cache import Batch, CacheBudget
from sidecar.worker.tensorflow.data import Batches, array_of, examples_in, feed
from sidecar.worker.tensorflow.finite import finite_rows
from sidecar.worker.tensorflow.kept import Kept
from sidecar.worker.tensorflow.keras_file import is_keras_file
from sidecar.worker.tensorflow.measure import Measurement, chosen, measurement
from sidecar.worker.tensorflow.outputs import by_output
from sidecar.worker.tensorflow.pending import Pending
from sidecar.worker.tensorflow.readable import readable
from sidecar.worker.tensorflow.restore import is_keras_2, restore, variables_of
from sidecar.worker.tensorflow.saved_graph import SavedGraph, is_saved_model
from sidecar.worker.tensorflow.weights import Weights


class KerasEvaluator:
    """See `sidecar.worker.backend.Evaluator`. The model is called on a batch here: unbuilt, it restores nothing.

    Where stored graphs are trusted, that of a SavedModel stands in the model's place until the next checkpoint.
    """

    def __init__(
        self, task: Task, shard: Shard, *, threads: int, cache_bytes: int, trust_saved_graph: bool = False
    ) -> None:
        self._task, self._shard, self._trusts = task, shard, trust_saved_graph
        budget = CacheBudget(cache_bytes)
        self._batches = [
            Batches(name, eval_set, batch_size=task.batch_size, shard=shard, threads=threads, budget=budget)
            for name, eval_set in task.sets().items()
        ]
        self._chosen = self._batches
        self.model: Any = _built(task, trusts=trust_saved_graph)
        self._weights = Weights(self.model)
        self.builds = 0 if self.model is None else 1
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="beside")  # for what needs none of the data
        self._graph: SavedGraph | None = None
        self._autograph = _wants_autograph(task, self.model)
        self._steps: dict[str, _Step] = {}
        self._of_graph: dict[str, _Step] = {}
        self._firsts: dict[str, Any] = {}  # for graphs that are still to come
        self._traced = 0  # with graphs that are gone
        for batches in self._batches:
            kind, first = repr(batches.spec), batches.first()
            if self.model is not None and kind not in self._steps:
                self._steps[kind] = _Step(task, self.model, first, batches.spec, autograph=self._autograph)
            if trust_saved_graph:
                self._firsts.setdefault(kind, first)

    @property
    def traces(self) -> int:
        """How often a step was traced so far."""
        return self._traced + sum(step.traces for step in (*self._steps.values(), *self._of_graph.values()))

    def read(self, tick: Tick, evaluated: int = 0) -> tuple[Stream, ...]:
        """Choose the eval sets that take part, and read those that are not read yet."""
        chosen = self._task.sets(evaluated)
        self._chosen = [batches for batches in self._batches if batches.name in chosen]
        return tuple(batches.read(tick) for batches in self._chosen)

    def restore(self, path: str) -> Callable[[], None]:
        """Begin to bind every variable; the task's own `restore` is called in the end, by whoever waits."""
        self._let_go()
        for metric in getattr(self.model, "metrics", ()):  # weights, to tf_keras, and each rank saw other batches
            metric.reset_state()
        if self._task.restore is not None:
            return partial(self._let_task_restore, self._task.restore, path)
        loading = self._beside.submit(self._load, path)
        return lambda: self._take_up(loading.result())

    def _let_task_restore(self, function: Callable[[Any, str], Any], path: str) -> None:
        is_file = is_keras_file(path)
        if is_file:
            require_self_contained(path)
        try:
            with readable(path) as plain:
                function(self.model, plain)
        except Exception as error:
            if _is_gone(path):
                raise EvaluationError("vanished", f"{path} is gone: {error}") from error
            if is_file:
                require_readable(path)
            raise

    def _load(self, path: str) -> SavedGraph | None:
        """Restore the model, or return the graph that is evaluated instead of it."""
        if self._trusts and is_saved_model(path):
            if self._task.metrics is None and self._task.loss is None:
                raise EvaluationError(
                    "task_error",
                    f"the graph stored in {path} has no metrics of its own: give Task(metrics=…) or Task(loss=…), or "
                    f"set trust_saved_graph = false to evaluate its weights in the compiled model",
                )
            return SavedGraph(path, self._task.signature)
        if self.model is not None:
            restore(self.model, path, self._task.checkpoint)
            return None
        if _is_gone(path):
            raise EvaluationError("vanished", f"{path} is gone")
        raise EvaluationError(
            "mismatch",
            f"{path} is no SavedModel, and Task(build_model=None) has no model to restore it into: give build_model",
        )

    def _take_up(self, graph: SavedGraph | None) -> None:
        """Evaluate a graph from now on, if one was loaded."""
        if graph is None:
            return
        self._graph = graph
        self.builds += 1
        for batches in self._chosen:
            kind = repr(batches.spec)
            if kind not in self._of_graph:
                self._of_graph[kind] = _Step(
                    self._task, graph, self._firsts[kind], batches.spec, autograph=self._autograph
                )

    def _let_go(self) -> None:
        """Forget the graph of the checkpoint before, first of all: there may be no memory for two."""
        if self._graph is None:
            return
        self._traced += sum(step.traces for step in self._of_graph.values())
        self._graph, self._of_graph = None, {}
        gc.collect()  # functions and what they captured hold each other

    def digest(self) -> Callable[[], str]:
        """Digest of types, shapes and values of the model's variables, in their order, or of the stored graph's."""
        variables = variables_of(self.model) if self._graph is None else self._graph.variables
        # No copies: a variable that changes later gets a buffer of its own.
        values = [tf.convert_to_tensor(variable) for variable in variables]
        return self._beside.submit(_digest, values).result

    def layout(self) -> str:
        """Names, kinds and sizes of all states."""
        return repr(
            [
                (batches.name, name, type(state).__name__, state.rows, state.width)
                for batches in self._chosen
                for name, state in sorted(self._states(batches).items())
            ]
        )

    def evaluate(self, tick: Tick, keep: Keep = forget) -> States:
        """Sum metric states over this rank's own batches, and hand over what the task keeps of them."""
        found: States = {}
        for batches in self._chosen:
            step = self._step_of(batches)
            counted = 0
            states = self._states(batches)
            pending, predicted = Pending(partial(step.add, states)), nonfinite.Finds()
            for number, first, batch in batches.own():
                outputs, finite, columns = step.run(batch)
                examples = examples_in(batch)
                pending.add([tensor.numpy() for tensor in outputs], first)
                counted += examples
                predicted.add("prediction", [rows.numpy() for rows in finite], examples, number, first)
                if columns:
                    keep(batches.name, Rows(first, examples, tf.nest.map_structure(array_of, columns)))
                tick()
            pending.flush()
            total = ExactSum((), "int64")
            total.add(np.int64(counted))
            found[batches.name] = states | {EXAMPLES: total}
            found[batches.name] |= nonfinite.states(self._shard, batches.nonfinite, predicted)
        return found

    def save_weights(self, folder: Path) -> None:
        """A TensorFlow checkpoint: `tf.train.Checkpoint(model=model).restore(folder / "weights")`.

        Of a stored graph likewise, into what `tf.saved_model.load` returns.
        """
        (self._weights if self._graph is None else self._graph).write(folder)

    def conclude(self, reduced: States) -> Mapping[str, Numbers]:
        """The final numbers, by eval set."""
        return {
            batches.name: self._step_of(batches).measurement.conclude(reduced[batches.name]) for batches in self._chosen
        }

    def _states(self, batches: Batches) -> SetStates:
        return self._step_of(batches).measurement.states(Extent(batches.examples, self._shard))

    def _step_of(self, batches: Batches) -> "_Step":
        return (self._steps if self._graph is None else self._of_graph)[repr(batches.spec)]


def _built(task: Task, *, trusts: bool) -> Any:
    """The task's model, None if it has none."""
    if task.build_model is None:
        if not trusts:
            raise EvaluationError(
                "task_error",
                "Task(build_model=None) can evaluate stored graphs only: set trust_saved_graph = true if you trust who "
                "writes the checkpoints, or give build_model",
            )
        return None
    model = call("Task(build_model=…)", task.build_model)
    if not callable(model) or not hasattr(model, "weights"):
        found = f"{type(model).__name__} {str(model)[:80]!r}"
        raise EvaluationError("task_error", f"Task(build_model=…) must return a Keras model, found {found}")
    return model


def _wants_autograph(task: Task, model: Any) -> bool:
    """As each Keras does it itself: Keras 3 traces without AutoGraph, tf_keras with it."""
    if model is not None:
        return is_keras_2(model)
    measured = [*by_output(task.loss).values(), *(metric for _, metric in chosen(task))]
    return any(is_keras_2(each) for each in measured)


def _is_gone(path: str) -> bool:
    """Whether nothing is left of a checkpoint: its path may be the prefix of several files."""
    return not any(Path(path).parent.glob(f"{glob.escape(Path(path).name)}*"))


def _digest(values: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        feed(digest.update, array_of(value))
    return digest.hexdigest()


class _Step:
    """What is done with batches of one kind: one measurement, one trace for the life of the process."""

    def __init__(self, task: Task, model: Any, first: Any, spec: Any, *, autograph: bool) -> None:
        self.measurement: Measurement = measurement(task, model, first)
        self._kept = Kept(task.predictions, model, first) if task.predictions else None
        self._outputs: Any = None  # their structure, once traced
        self.run: Any = tf.function(self._step, input_signature=[spec], autograph=autograph)

    @property
    def traces(self) -> int:
        """How often it was traced so far."""
        return int(self.run.experimental_get_tracing_count())

    def add(self, states: SetStates, outputs: list[list[Any]], firsts: Sequence[int | None]) -> None:
        """Add several batches: of each output of `run` a list, an array for each batch."""
        self.measurement.add(states, tf.nest.pack_sequence_as(self._outputs, outputs), firsts)

    def _step(self, batch: Batch) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """What the measurement needs of a batch, which rows of the predictions are finite, and what is kept."""
        predictions = None if self._kept is None else self._kept.predict(batch)
        outputs, seen = self.measurement.step(batch, predictions)
        columns = {} if self._kept is None else self._kept.columns(batch, predictions)
        self._outputs = tf.nest.map_structure(lambda _: None, outputs)  # packing it for each batch would cost more
        return tf.nest.flatten(outputs), finite_rows(seen if predictions is None else predictions), columns
