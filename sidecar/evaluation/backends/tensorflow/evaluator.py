"""Keep a built task warm between checkpoints: its model, data and traced steps."""

import gc
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from sidecar.evaluation.backend import Keep, States, Stream, Tick, forget
from sidecar.evaluation.backends.tensorflow.data import Batches, array_of
from sidecar.evaluation.backends.tensorflow.keras_file import is_keras_file
from sidecar.evaluation.backends.tensorflow.layer_tables import held_of, settings_of
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.backends.tensorflow.measure import chosen
from sidecar.evaluation.backends.tensorflow.model import complete, make_model
from sidecar.evaluation.backends.tensorflow.randomness import NOTE, seed_of
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.backends.tensorflow.replay import Replay
from sidecar.evaluation.backends.tensorflow.restore import restore, variables_of
from sidecar.evaluation.backends.tensorflow.saved_graph import SavedGraph, is_saved_model
from sidecar.evaluation.backends.tensorflow.step import NO_SEED, Step
from sidecar.evaluation.backends.tensorflow.weights import Weights
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.cache import CacheBudget
from sidecar.evaluation.data.digest import feed
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.eval_loop import BatchOutput, evaluate_set
from sidecar.evaluation.failures import EvaluationError, following_from_code
from sidecar.evaluation.hdf5 import require_readable, require_self_contained
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult
from sidecar.evaluation.outputs import by_output
from sidecar.evaluation.path_alias import is_gone, readable
from sidecar.evaluation.states import SetStates
from sidecar.evaluation.task import Task


class KerasEvaluator:
    """See `sidecar.evaluation.backend.Evaluator`. The model is called on a batch here: unbuilt, it restores nothing.

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
        with following_from_code():
            self.model: Any = make_model(task, trusts=trust_saved_graph)
        self._weights = Weights(self.model)
        self.builds = 0 if self.model is None else 1
        self._in_parallel = ThreadPoolExecutor(1, thread_name_prefix="in-parallel")  # for what needs none of the data
        self._graph: SavedGraph | None = None
        self._autograph = _wants_autograph(task, self.model)
        self._steps: dict[str, Step] = {}
        self._of_graph: dict[str, Step] = {}
        self._firsts: dict[str, Any] = {}  # for graphs that are still to come
        self._traced = 0  # with graphs that are gone
        self._replays: dict[str, Replay] = {}
        self._weights_digest: Callable[[], str] | None = None
        for batches in self._batches:
            kind, first = repr(batches.spec), batches.first()
            if self.model is not None and kind not in self._steps:
                with following_from_code(ValueError, tf.errors.InvalidArgumentError):
                    self._steps[kind] = Step(task, self.model, first, batches.spec, autograph=self._autograph)
                    complete(self.model, first)
            self._firsts.setdefault(kind, first)
        self._recurrent = RecurrentStates(self.model)
        for batches in self._batches if self._recurrent else ():
            with following_from_code():
                batches.leave_to_first_for(self._recurrent)
        self._held = held_of(self.model)
        self._settings = settings_of(self.model)
        self._given: list[Any] | None = None  # layers to which the checkpoint gave what they hold; None: nobody knows
        if not trust_saved_graph and not self._held:
            self._firsts = {}

    @property
    def traces(self) -> int:
        """How often a step was traced so far."""
        return self._traced + sum(step.traces for step in (*self._steps.values(), *self._of_graph.values()))

    @property
    def loads_graphs(self) -> bool:
        """Whether `restore` may load a graph that a SavedModel stores."""
        return self._trusts

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
        self._recurrent.reset()
        if self._task.restore is not None:
            return partial(self._let_task_restore, self._task.restore, path)
        loading = self._in_parallel.submit(self._load, path)
        return lambda: self._take_up(loading.result())

    def _let_task_restore(self, function: Callable[[Any, str], Any], path: str) -> None:
        is_file = is_keras_file(path)
        if is_file:
            require_self_contained(path)
        try:
            with readable(path) as plain:
                self._given = None
            function(self.model, plain)
            self._look_outside()
        except Exception as error:
            if is_gone(path):
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
            self._given = restore(self.model, path, self._task.checkpoint)
            return None
        if is_gone(path):
            raise EvaluationError("vanished", f"{path} is gone")
        raise EvaluationError(
            "mismatch",
            f"{path} is no SavedModel, and Task(build_model=None) has no model to restore it into: give build_model",
        )

    def _take_up(self, graph: SavedGraph | None) -> None:
        """Evaluate a graph from now on, if one was loaded."""
        if graph is None:
            self._look_outside()
            return
        self._graph = graph
        self.builds += 1
        for batches in self._chosen:
            kind = repr(batches.spec)
            if kind not in self._of_graph:
                self._of_graph[kind] = self._step(graph, batches)

    def _step(self, model: Any, batches: Batches) -> Step:
        first = self._firsts[repr(batches.spec)]
        return Step(self._task, model, first, batches.spec, autograph=self._autograph)

    def _look_outside(self) -> None:
        """Trace anew where layers hold another vocabulary or other bins: traces keep those that they were made with."""
        held, self._held = self._held, held_of(self.model)
        if [each.digest for each in held] == [each.digest for each in self._held] or not self._firsts:
            return
        self._settings = settings_of(self.model)
        self._traced += sum(step.traces for step in self._steps.values())
        by_kind = {repr(batches.spec): batches for batches in self._batches}
        with self._recurrent.kept():  # a model is tried on a first batch
            self._steps = {kind: self._step(self.model, batches) for kind, batches in by_kind.items()}

    def _let_go(self) -> None:
        """Forget the graph of the checkpoint before, first of all: there may be no memory for two."""
        if self._graph is None:
            return
        self._traced += sum(step.traces for step in self._of_graph.values())
        self._graph, self._of_graph = None, {}
        gc.collect()  # functions and what they captured hold each other

    def digest(self) -> Callable[[], str]:
        """Begin to hash types, shapes and values of the model's or the stored graph's variables, in their order."""
        variables = variables_of(self.model) if self._graph is None else self._graph.variables
        # No copies: a variable that changes later gets a buffer of its own.
        values = [tf.convert_to_tensor(variable) for variable in variables]
        self._weights_digest = self._in_parallel.submit(_digest, values).result
        return self._weights_digest

    def outside(self) -> dict[str, str]:
        """Return the digest of what each layer holds outside its variables; nothing for a stored graph."""
        if self._graph is not None:
            return {}
        return {f"settings of {name}": each for name, each in self._settings.items()} | {
            f"vocabulary, bins or assets of {each.name}": each.digest for each in self._held
        }

    def layout(self) -> str:
        """Return names, kinds and sizes of all states."""
        return repr(
            [
                (batches.name, name, type(state).__name__, state.rows, state.width)
                for batches in self._chosen
                for name, state in sorted(self._states(batches).items())
            ]
        )

    def evaluate(self, tick: Tick, keep: Keep = forget) -> States:
        """Sum metric states over this rank's own batches, and hand over what the task keeps of them."""
        with self._recurrent.kept() as begin:
            return {batches.name: self._evaluate(batches, begin, tick, keep) for batches in self._chosen}

    def _evaluate(self, batches: Batches, begin: list[Any], tick: Tick, keep: Keep) -> SetStates:
        """Evaluate one eval set, beginning with these states of recurrent layers."""
        step = self._step_of(batches)
        states = self._states(batches)
        replay = self._replays.get(batches.name) or step.replay()
        self._recurrent.assign(begin)
        carried = step.recurrent.values()

        def run(batch: Batch, number: int, first: int | None) -> BatchOutput:
            nonlocal carried
            seed = self._seed(step, batches, batch, None if first is None else number)
            evaluated = step.run(batch, step.start, seed, carried)
            if replay is not self._replays.get(batches.name):
                self._replays[batches.name] = replay
                step.require_repeatable(batch, seed, carried, evaluated)
            outputs, finite, columns, after = evaluated
            arrays = [tensor.numpy() for tensor in outputs]
            replay.look(batch, step.changes(arrays), partial(step.run_from, seed, carried))
            carried = after
            return BatchOutput(arrays, [rows.numpy() for rows in finite], tf.nest.map_structure(array_of, columns))

        def finish() -> None:
            replay.finish()
            step.measurement.by_batch.tell(states)

        return evaluate_set(
            batches,
            states,
            run=run,
            add=partial(step.add, states),
            finish=finish,
            shard=self._shard,
            tick=tick,
            keep=keep,
        )

    def save_weights(self, folder: Path) -> None:
        """Write a TensorFlow checkpoint: `tf.train.Checkpoint(model=model).restore(folder / "weights")` reads it.

        Of a stored graph likewise, into what `tf.saved_model.load` returns.
        """
        with self._recurrent.kept():  # by nobody who evaluates meanwhile
            (self._weights if self._graph is None else self._graph).write(folder)

    def compute(self, reduced: States) -> Mapping[str, MetricResult]:
        """Return the final numbers, by eval set."""
        found = {}
        for batches in self._chosen:
            measurement = self._step_of(batches).measurement
            batches.refuse_batch_means(measurement.by_batch.names(reduced[batches.name]))
            numbers = measurement.compute(reduced[batches.name])
            drawn = (NOTE,) if measurement.randomness.is_drawn else ()
            unknown = measurement.by_batch.notes(reduced[batches.name])
            notes = numbers.notes + unknown + drawn + self._recurrent.notes() + self._from_task()
            found[batches.name] = replace(numbers, notes=notes)
        return found

    def _from_task(self) -> tuple[str, ...]:
        """Return the note about tables that the checkpoint lacks, so that those of the task are used."""
        if self._graph is not None or self._given is None:
            return ()
        given = {id(layer) for layer in self._given}
        names = [each.name for each in self._held if id(each.layer) not in given]
        if not names:
            return ()
        return (f"{', '.join(names)}: vocabulary, bins or assets are the task's, as the checkpoint does not hold them",)

    def _seed(self, step: Step, batches: Batches, batch: Batch, number: int | None) -> Any:
        """Return the seed of the model's generators for a batch; it means nothing if the model draws nothing."""
        if not step.measurement.randomness.is_drawn:
            return NO_SEED
        assert self._weights_digest is not None
        return seed_of(self._weights_digest(), batches.name, batches.digest(batch) if number is None else number)

    def _states(self, batches: Batches) -> SetStates:
        return self._step_of(batches).measurement.states(EvalSetInfo(batches.examples, self._shard))

    def _step_of(self, batches: Batches) -> Step:
        return (self._steps if self._graph is None else self._of_graph)[repr(batches.spec)]


def _wants_autograph(task: Task, model: Any) -> bool:
    """Return whether to trace with AutoGraph, as each Keras does itself: tf_keras with it, Keras 3 without."""
    if model is not None:
        return is_keras_2(model)
    measured = [*by_output(task.loss).values(), *(metric for _, metric in chosen(task))]
    return any(is_keras_2(each) for each in measured)


def _digest(values: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        feed(digest.update, array_of(value))
    return digest.hexdigest()
