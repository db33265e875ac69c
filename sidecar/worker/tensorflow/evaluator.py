"""A built task: model, data and traced steps that stay warm between checkpoints."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from sidecar.worker import nonfinite
from sidecar.worker.backend import Keep, Rows, States, Stream, Tick, forget
from sidecar.worker.failures import EvaluationError
from sidecar.worker.flow import EXAMPLES
from sidecar.worker.metrics.metric import Extent, Numbers
from sidecar.worker.shard import Shard
from sidecar.worker.states import ExactSum, SetStates
from sidecar.worker.task import Task, call
from sidecar.worker.tensorflow.cache import Batch, CacheBudget
from sidecar.worker.tensorflow.data import Batches, array_of, examples_in, feed
from sidecar.worker.tensorflow.finite import finite_rows
from sidecar.worker.tensorflow.kept import Kept
from sidecar.worker.tensorflow.measure import Measurement, measurement
from sidecar.worker.tensorflow.pending import Pending
from sidecar.worker.tensorflow.readable import readable
from sidecar.worker.tensorflow.restore import is_keras_2, restore, variables_of
from sidecar.worker.tensorflow.weights import Weights


class KerasEvaluator:
    """See `sidecar.worker.backend.Evaluator`. The model is called on a batch here: unbuilt, it restores nothing."""

    def __init__(self, task: Task, shard: Shard, *, threads: int, cache_bytes: int) -> None:
        self._task, self._shard = task, shard
        budget = CacheBudget(cache_bytes)
        self._batches = [
            Batches(name, eval_set, batch_size=task.batch_size, shard=shard, threads=threads, budget=budget)
            for name, eval_set in task.sets().items()
        ]
        self._chosen = self._batches
        self.model: Any = call("Task(build_model=…)", task.build_model)
        if not callable(self.model) or not hasattr(self.model, "weights"):
            found = f"{type(self.model).__name__} {str(self.model)[:80]!r}"
            raise EvaluationError("task_error", f"Task(build_model=…) must return a Keras model, found {found}")
        self._weights = Weights(self.model)
        self.builds = 1
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="beside")  # for what needs none of the data
        self._steps: dict[str, _Step] = {}
        for batches in self._batches:
            first = batches.first()
            if repr(batches.spec) not in self._steps:
                self._steps[repr(batches.spec)] = _Step(task, self.model, first, batches.spec)

    @property
    def traces(self) -> int:
        """How often a step was traced so far."""
        return sum(step.run.experimental_get_tracing_count() for step in self._steps.values())

    def read(self, tick: Tick, evaluated: int = 0) -> tuple[Stream, ...]:
        """Choose the eval sets that take part, and read those that are not read yet."""
        chosen = self._task.sets(evaluated)
        self._chosen = [batches for batches in self._batches if batches.name in chosen]
        return tuple(batches.read(tick) for batches in self._chosen)

    def restore(self, path: str) -> Callable[[], None]:
        """Begin to bind every variable; the task's own `restore` is called in the end, by whoever waits."""
        for metric in getattr(self.model, "metrics", ()):  # weights, to tf_keras, and each rank saw other batches
            metric.reset_state()
        if self._task.restore is None:
            return self._beside.submit(restore, self.model, path, self._task.checkpoint).result
        return partial(self._let_task_restore, self._task.restore, path)

    def _let_task_restore(self, function: Callable[[Any, str], Any], path: str) -> None:
        try:
            with readable(path) as plain:
                function(self.model, plain)
        except Exception as error:
            if not any(Path(path).parent.glob(f"{escape(Path(path).name)}*")):
                raise EvaluationError("vanished", f"{path} is gone: {error}") from error
            raise

    def digest(self) -> Callable[[], str]:
        """Digest of types, shapes and values of the model's variables, in their order."""
        # No copies: a variable that changes later gets a buffer of its own.
        values = [tf.convert_to_tensor(variable) for variable in variables_of(self.model)]
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
        """A TensorFlow checkpoint of the model: `tf.train.Checkpoint(model=model).restore(folder / "weights")`."""
        self._weights.write(folder)

    def conclude(self, reduced: States) -> Mapping[str, Numbers]:
        """The final numbers, by eval set."""
        return {
            batches.name: self._step_of(batches).measurement.conclude(reduced[batches.name]) for batches in self._chosen
        }

    def _states(self, batches: Batches) -> SetStates:
        return self._step_of(batches).measurement.states(Extent(batches.examples, self._shard))

    def _step_of(self, batches: Batches) -> "_Step":
        return self._steps[repr(batches.spec)]


def _digest(values: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        feed(digest.update, array_of(value))
    return digest.hexdigest()


class _Step:
    """What is done with batches of one kind: one measurement, one trace for the life of the process."""

    def __init__(self, task: Task, model: Any, first: Any, spec: Any) -> None:
        self.measurement: Measurement = measurement(task, model, first)
        self._kept = Kept(task.predictions, model, first) if task.predictions else None
        self._outputs: Any = None  # their structure, once traced
        # As each Keras does it itself: Keras 3 traces without AutoGraph, tf_keras with it.
        self.run: Any = tf.function(self._step, input_signature=[spec], autograph=is_keras_2(model))

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
