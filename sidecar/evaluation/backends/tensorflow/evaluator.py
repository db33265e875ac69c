"""Keep a built task warm between checkpoints: its model, data and traced steps."""

import gc
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.evaluation.backend import (
    FROM_THE_BEGINNING,
    Resumption,
    SaveRows,
    States,
    Stream,
    Tick,
    discard_rows,
)
from sidecar.evaluation.backends.tensorflow.completeness import Exceptions, states_of_metrics
from sidecar.evaluation.backends.tensorflow.data import Batches, array_of
from sidecar.evaluation.backends.tensorflow.drawn_when_built import DrawnWhenBuilt
from sidecar.evaluation.backends.tensorflow.keras_backend import notes_on
from sidecar.evaluation.backends.tensorflow.keras_file import is_keras_file
from sidecar.evaluation.backends.tensorflow.keras_metric import negative_notes
from sidecar.evaluation.backends.tensorflow.libraries import layers_of
from sidecar.evaluation.backends.tensorflow.model import has_own_test_step, make_model
from sidecar.evaluation.backends.tensorflow.non_variable_state import NonVariableState
from sidecar.evaluation.backends.tensorflow.outside_layers import require_known, require_restored, roots_of
from sidecar.evaluation.backends.tensorflow.randomness import seed_of
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.backends.tensorflow.restore import variables_of
from sidecar.evaluation.backends.tensorflow.saved_graph import SavedGraph, is_saved_model
from sidecar.evaluation.backends.tensorflow.set_checks import SetChecks
from sidecar.evaluation.backends.tensorflow.sliced_metric import missing_in_slices
from sidecar.evaluation.backends.tensorflow.step import NO_SEED, Step
from sidecar.evaluation.backends.tensorflow.traced_steps import TracedSteps
from sidecar.evaluation.backends.tensorflow.weights import Weights
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.cache import CacheBudget
from sidecar.evaluation.data.digest import feed
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.data.third_part import naming_weights
from sidecar.evaluation.eval_loop import EXAMPLES, BatchObserver, BatchOutput, evaluate_set
from sidecar.evaluation.eval_sets import EvalSets
from sidecar.evaluation.failures import EvaluationError, following_from_code, mismatch, task_error
from sidecar.evaluation.hdf5 import require_readable, require_self_contained
from sidecar.evaluation.kept_values import KeptValues
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.output_comparison import no_outputs, summary
from sidecar.evaluation.path_alias import readable, require_present
from sidecar.evaluation.remedy import ON_THE_MODEL
from sidecar.evaluation.repeatability import NOTE, refuse_drawn
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum
from sidecar.evaluation.task import Task, does_nothing

_PARTS: Final = 3  # of a batch (x, y, sample_weight)
_REMEDY: Final = (
    "map the data to (x, y) with dataset.map(lambda x, y, *rest: (x, y)), or for two inputs and a label "
    "dataset.map(lambda x1, x2, y: ((x1, x2), y))"
)

_NEGATIVES: Final = "negative labels and weights"  # name of a state; those of metrics contain a slash


class KerasEvaluator:
    """Implement `sidecar.evaluation.backend.Evaluator` for a task of Keras 3 or tf_keras.

    The model is called on a batch when it is made, because an unbuilt model has no variables to restore. Where stored
    graphs are trusted, the graph of a SavedModel replaces the model until the next checkpoint.
    """

    outputs_are_new = True
    """Whether ranks have to compare predictions: a model may hold numbers that neither variables nor `outside` have."""

    @classmethod
    def build(
        cls,
        task: Task,
        shard: Shard,
        *,
        threads: int,
        cache_bytes: int,
        trust_saved_graph: bool = False,
        sets_back: bool = True,
    ) -> Self:
        """Open the data, build the model, and call it on the first batch of each eval set, without tracing anything.

        `sets_back`: whether what the task's code keeps is set back, as it must not be in a user's own process.
        """
        budget = CacheBudget(cache_bytes)
        readers = [
            Batches(name, eval_set, batch_size=task.batch_size, shard=shard, threads=threads, budget=budget)
            for name, eval_set in task.sets().items()
        ]
        with following_from_code():
            model = make_model(task, trusts=trust_saved_graph)
        classes = {type(layer) for layer in layers_of(model)}
        kept = KeptValues(task, *classes, *(value for _, value in roots_of(task, model))) if sets_back else None
        evaluator = cls(task, shard, readers, model, kept, trust_saved_graph=trust_saved_graph)
        evaluator.try_out(readers)
        return evaluator

    def __init__(
        self,
        task: Task,
        shard: Shard,
        readers: Sequence[Batches],
        model: Any,
        kept: KeptValues | None,
        *,
        trust_saved_graph: bool,
    ) -> None:
        self._task, self._shard = task, shard
        self.loads_graphs = trust_saved_graph
        """Whether `restore` may load a graph that a SavedModel stores."""
        self._sets = EvalSets(task, shard, readers)
        self.model: Any = model
        exceptions = Exceptions(task.ignore, task.from_build_model, of_metrics=states_of_metrics(self.model))
        self._weights, self._drawn = Weights(self.model, exceptions), DrawnWhenBuilt(task, self.model, exceptions)
        self.builds = 0 if self.model is None else 1
        self._in_parallel = ThreadPoolExecutor(1, thread_name_prefix="in-parallel")  # for work that needs no data
        self._graph: SavedGraph | None = None
        self._checks: dict[str, SetChecks] = {}
        self._weights_digest: Callable[[], str] | None = None
        self._steps = TracedSteps(task, self.model, _nothing if kept is None else kept.set_back)

    def try_out(self, readers: Sequence[Batches]) -> None:
        """Call the model on the first batch of each eval set. It is the first call of any other method."""
        task = self._task
        for batches in readers:
            spec, first = batches.spec, batches.first()
            self._checks[batches.name] = SetChecks(batches.name, first)
            own = task.of_set(batches.name)
            has_weights = isinstance(first, tuple) and len(first) == _PARTS and takes_weights(own, self.model)
            if has_weights:
                batches.expect_weights(_REMEDY, first)
            with (
                following_from_code(ValueError, tf.errors.InvalidArgumentError),
                naming_weights(partial(str, _REMEDY if has_weights else "")),
            ):
                self._add_step(batches.name, first, spec)
        if self.model is not None:
            for name in task.eval_sets:
                require_restored(task.of_set(name), self.model)
        self._recurrent = RecurrentStates(self.model)
        for batches in readers if self._recurrent else ():
            with following_from_code():
                batches.leave_to_first_for(self._recurrent)
        if self.model is not None:
            self._steps.require_in_turn()
            self._leave_to_first()
        self._non_variable = NonVariableState(self.model)
        if not self.loads_graphs and not self._non_variable.has_tables:
            self._steps.forget_first_batches()

    def _add_step(self, eval_set: str, first: Any, spec: Any) -> None:
        try:
            self._steps.add(eval_set, first, spec)
        except tf.errors.FailedPreconditionError as error:
            if "Table not initialized" not in str(error):
                raise
            raise task_error(
                "a layer that looks up words or numbers has no vocabulary yet: call layer.adapt(…) or "
                "layer.set_vocabulary(…)",
                remedy=ON_THE_MODEL + "; the vocabulary in a .keras file replaces it",
            ) from error

    @property
    def traces(self) -> int:
        """Return the number of times that steps have been traced."""
        return self._steps.traces

    def read(self, tick: Tick, evaluated: int = 0, most: int | None = None) -> tuple[Stream, ...]:
        """Choose the eval sets of this evaluation, and read those that have not been read yet."""
        return self._sets.read(tick, evaluated, most)

    def differs(self, changed: bool) -> bool:
        """Return whether a sample of the data differs from what was read."""
        return changed or self._sets.differs()

    def restore(self, path: str) -> Callable[[], None]:
        """Begin to restore every variable; the returned function waits for it, or calls the `restore` of the task."""
        self._release_graph()
        self._steps.set_back()
        for metric in getattr(self.model, "metrics", ()):  # tf_keras counts them as weights, but ranks differ
            metric.reset_state()
        self._recurrent.reset()
        if self._task.restore is not None:
            return partial(self._let_task_restore, self._task.restore, path)
        loading = self._in_parallel.submit(self._load, path)
        return lambda: self._use(loading.result())

    def _let_task_restore(self, function: Callable[[Any, str], Any], path: str) -> None:
        is_file = is_keras_file(path)
        if is_file:
            require_self_contained(path)
        try:
            self._non_variable.restored = None
            if not does_nothing(function):
                self._drawn.note_built()
            with readable(path) as plain:
                function(self.model, plain)
                self._drawn.note_replaced(partial(function, self.model, plain))
            self._weights.vocabularies.require_replaced(path)
            self._renew_steps()
        except EvaluationError:
            raise
        except Exception as error:
            require_present(path, error)
            if is_file:
                require_readable(path)
            raise

    def _load(self, path: str) -> SavedGraph | None:
        """Restore the model and return `None`, or return the stored graph that is evaluated in its place."""
        if self.loads_graphs and is_saved_model(path):
            if any(own.metrics is None and own.loss is None for own in map(self._task.of_set, self._task.eval_sets)):
                raise task_error(
                    f"the graph stored in {path} has no metrics: give Task(metrics=…) or Task(loss=…), or "
                    f"set trust_saved_graph = false to evaluate its weights in the compiled model"
                )
            return SavedGraph(path, self._task.signature)
        if self.model is not None:
            assert not isinstance(self._task.checkpoint, str), "the dispatcher checks it"
            self._non_variable.restored = self._weights.restore(path, self._task.checkpoint)
            self._weights.vocabularies.require_replaced(path)
            return None
        require_present(path)
        raise mismatch(
            f"{path} is not a SavedModel, and Task(build_model=None) has no model to restore it into: give build_model"
        )

    def _use(self, graph: SavedGraph | None) -> None:
        """Evaluate the loaded graph from now on; if there is none, check the tables of the restored model."""
        if graph is None:
            self._renew_steps()
            return
        self._graph = graph
        self.builds += 1
        self._steps.use_graph(graph, {batches.name: batches.spec for batches in self._sets.chosen})

    def _renew_steps(self) -> None:
        """Trace again if vocabularies or bins changed, because a trace keeps the tables it was made with."""
        if not self._non_variable.read_tables() or not self._steps.can_be_renewed:
            return
        self._non_variable.read_settings()
        with self._recurrent.preserved():  # tracing calls the model on a first batch, which changes the states
            self._steps.renew()

    def _release_graph(self) -> None:
        """Release the graph of the previous checkpoint before a load: memory may not suffice for two graphs."""
        if self._graph is None:
            return
        self._steps.drop_graph()
        self._graph = None
        gc.collect()  # functions and their captures form reference cycles

    @property
    def _variables(self) -> list[Any]:
        """All variables of the model or stored graph, in their order."""
        return variables_of(self.model) if self._graph is None else self._graph.variables

    @property
    def weights_bytes(self) -> int:
        """Number of bytes of all variables."""
        tensors = map(tf.convert_to_tensor, self._variables)
        return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)

    @property
    def gpu_bytes(self) -> int:
        """Most bytes of the first GPU's memory that TensorFlow allocated."""
        has_gpu = bool(tf.config.list_logical_devices("GPU"))
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]) if has_gpu else 0

    def digest(self) -> Callable[[], str]:
        """Begin to hash type, shape and value of all variables of the model or stored graph, in their order."""
        # No copies: a variable that changes later gets a new buffer.
        values = [tf.convert_to_tensor(variable) for variable in self._variables]
        self._weights_digest = self._in_parallel.submit(_digest, values).result
        return self._weights_digest

    def outputs(self) -> NDArray[np.float64]:
        """Return a summary of the predictions for the first batch of each set that all ranks read alike.

        A `test_step` that tells no predictions is compared by the states of its metrics.
        """
        outputs = no_outputs()
        with self._recurrent.preserved() as begin:
            for place, batches in enumerate(self._sets.chosen):
                if batches.division == "own":
                    continue
                self._recurrent.assign(begin)
                step, first = self._step_of(batches), self._checks[batches.name].first
                seed = self._seed(step, batches, first, 0)
                evaluated = step.run(first, step.start, seed, step.recurrent.values())
                outputs[place] = summary(evaluated.rows() or evaluated.arrays())
        return outputs

    def outside(self) -> dict[str, str]:
        """Return digests of the state that layers hold outside their variables; nothing for a stored graph."""
        return self._non_variable.digests() if self._graph is None else {}

    def layout(self) -> str:
        """Return names, kinds and sizes of all states."""
        return self._sets.layout(self._states)

    def evaluate(
        self,
        tick: Tick,
        keep: SaveRows = discard_rows,
        resumption: Resumption = FROM_THE_BEGINNING,
        observer: BatchObserver | None = None,
    ) -> States:
        """Sum metric states over the batches of this rank, and pass the predictions that the task saves to `keep`."""
        self._require_restored()
        with self._recurrent.preserved() as begin:
            evaluate = partial(self._evaluate, begin=begin, tick=tick, keep=keep, observer=observer)
            return {
                batches.name: resumption.kept(batches.name, evaluate(batches, resumption.taken.get(batches.name)))
                for batches in self._sets.chosen
            }

    def _require_restored(self) -> None:
        """Raise `EvaluationError` if the checkpoint lacks random numbers that the model holds."""
        batches = next(iter(self._sets.chosen), None)
        if batches is None or self._graph is not None or self._recurrent or self._non_variable.has_tables:
            return
        if not self._step_of(batches).measurement.randomness.is_drawn:
            self._drawn.require_none(self._checks[batches.name].first)

    def _evaluate(
        self,
        batches: Batches,
        taken: SetStates | None,
        *,
        begin: list[Any],
        tick: Tick,
        keep: SaveRows,
        observer: BatchObserver | None,
    ) -> SetStates:
        """Evaluate one eval set; recurrent layers begin with the states `begin`."""
        step = self._step_of(batches)
        states = self._states(batches)
        checks = self._checks[batches.name]
        checks.begin(step)
        self._recurrent.assign(begin)
        carried, with_inputs = step.recurrent.values(), step.measurement.inputs.are_needed(states)

        def run(batch: Batch, number: int, first: int | None) -> BatchOutput:
            nonlocal carried
            seed = self._seed(step, batches, batch, None if first is None else number)
            evaluated = step.run(batch, step.start, seed, carried)
            arrays = step.arrays_of(evaluated, with_inputs=with_inputs)
            checks.add(step, batch, None if first is None else number, seed, carried, evaluated, arrays)
            carried = evaluated.carried
            columns = tf.nest.map_structure(array_of, evaluated.columns)
            return BatchOutput(arrays, [rows.numpy() for rows in evaluated.finite], columns, evaluated.calls)

        was_over = checks.is_over
        at_once = step.at_once() if was_over and observer is None else None
        began = time.monotonic()
        in_turn, mergeable = step.measurement.in_turn, list(step.measurement.stateful_metrics)
        in_turn.reset()

        def finish() -> None:
            if at_once is None:
                step.overlap.note(time.monotonic() - began, checks.seen)
            if self._graph is None and not was_over:
                metrics = [each.metric for each in step.measurement.stateful_metrics.values()]
                require_known(step.variables, self._task.of_set(batches.name), self.model, metrics)
            in_turn.found = checks.finish(step, states, divides_itself=batches.division == "own")
            exact_sum(states, _NEGATIVES).add(batches.negatives)
            in_turn.conclude(states, mergeable, is_first=self._shard.rank == 0)
            step.measurement.inputs.conclude(states, began)

        return evaluate_set(
            batches,
            states,
            run=run,
            add=partial(step.add, states),
            finish=finish,
            shard=self._shard,
            tick=tick,
            keep=keep,
            observer=observer,
            update_in_turn=in_turn.update if in_turn else None,
            taken=taken,
            at_once=at_once,
        )

    def restored_model(self) -> Any:
        """Return the restored model, or the loaded graph that is evaluated in its place."""
        return self.model if self._graph is None else self._graph

    def begins_again(self, reduced: States) -> bool:
        """Put metrics in turn that have proved to be no sums, and return whether any number needs that."""
        found: set[str] = set()
        for batches in self._sets.chosen:
            measured = self._step_of(batches).measurement
            found.update(measured.in_turn.found_in(reduced[batches.name], list(measured.stateful_metrics)))
            found.update(self._not_sums_to_end(batches, reduced[batches.name]))
        self._steps.put_in_turn(found)
        if found:
            for checks in self._checks.values():
                checks.start_over()
        return self._leave_to_first() or bool(found)

    def _leave_to_first(self) -> bool:
        """Let worker 0 evaluate the sets whose metrics are updated in turn; return whether any set changes to that."""
        changed = [
            batches
            for batches in self._sets.chosen
            if not batches.is_left_to_first and self._step_of(batches).measurement.in_turn
        ]
        for batches in changed:
            reason = f"{self._step_of(batches).measurement.in_turn.why()}, so it must be evaluated in turn"
            with following_from_code():
                batches.leave_to_first(reason)
            self._checks[batches.name].start_over()
        return bool(changed)

    def save_weights(self, folder: Path) -> None:
        """Write a TensorFlow checkpoint: `tf.train.Checkpoint(model=model).restore(folder / "weights")` reads it.

        The checkpoint of a stored graph is restored in the same way into the result of `tf.saved_model.load`.
        """
        with self._recurrent.preserved():  # an evaluation in another thread must not change them
            (self._weights if self._graph is None else self._graph).write(folder)

    def compute(self, reduced: States) -> Mapping[str, MetricResult]:
        """Return the final numbers, by eval set."""
        results = {}
        for batches in (each for each in self._sets.chosen if each.name in reduced):
            measurement = self._step_of(batches).measurement
            measurement.dependence.refuse(reduced[batches.name], batches.name, batches.division)
            if measurement.randomness.is_drawn:
                refuse_drawn(batches.name, batches.division)
            numbers = measurement.compute(reduced[batches.name])
            drawn = (NOTE,) if measurement.randomness.is_drawn else ()
            labels, weights = exact_sum(reduced[batches.name], _NEGATIVES).integers().tolist()
            negatives = negative_notes(labels if measurement.reads_classes else 0, weights)
            tables = self._non_variable.notes() if self._graph is None else ()
            third = (batches.third_part.notes if batches.third_part else ()) + batches.notes
            step = self._step_of(batches).notes
            notes = numbers.notes + negatives + drawn + self._recurrent.notes() + tables + third + step
            notes += notes_on(self.model) + missing_in_slices(numbers)
            results[batches.name] = replace(numbers, notes=notes)
        return results

    def _not_sums_to_end(self, batches: Batches, totals: SetStates) -> set[str]:
        """Return, once, the metrics that do not add up to the end of an eval set that does not divide itself."""
        if batches.division == "own":
            return set()
        step = self._step_of(batches)
        examples = int(exact_sum(totals, EXAMPLES).integers())
        with self._recurrent.preserved() as begin:
            number = None if batches.examples is None else 0
            seed_of_batch = partial(self._seed, step, batches, number=number)
            return self._checks[batches.name].not_sums_to_end(step, seed_of_batch, begin, totals, examples)

    def _seed(self, step: Step, batches: Batches, batch: Batch, number: int | None) -> Any:
        """Return the seed of the random generators for a batch; a constant if the model draws no random numbers."""
        if not step.measurement.randomness.is_drawn:
            return NO_SEED
        assert self._weights_digest is not None
        return seed_of(self._weights_digest(), batches.name, batches.digest(batch) if number is None else number)

    def _states(self, batches: Batches) -> SetStates:
        states = self._step_of(batches).measurement.states(self._sets.info(batches))
        return states | {_NEGATIVES: ExactSum((2,), "int64")}

    def _step_of(self, batches: Batches) -> Step:
        return self._steps.step_for(batches.name, batches.spec)


def _nothing() -> None:
    """Set nothing back."""


def takes_weights(task: Task, model: Any) -> bool:
    """Return whether the third part of a batch is a weight: the task measures, or Keras' own `test_step`."""
    return task.metrics is not None or task.loss is not None or not has_own_test_step(model)


def _digest(values: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        feed(digest.update, array_of(value))
    return digest.hexdigest()
