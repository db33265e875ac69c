"""A built task: model, data and traced steps that stay warm between checkpoints."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from sidecar.records import Value
from sidecar.worker.backend import States, Stream, Tick
from sidecar.worker.flow import EXAMPLES
from sidecar.worker.shard import Shard
from sidecar.worker.states import ExactSum
from sidecar.worker.task import Task
from sidecar.worker.tensorflow.data import Batches, CacheBudget
from sidecar.worker.tensorflow.measure import Measurement, measurement
from sidecar.worker.tensorflow.restore import restore


class KerasEvaluator:
    """See `sidecar.worker.backend.Evaluator`. The model is called on a batch here: unbuilt, it restores nothing."""

    def __init__(self, task: Task, shard: Shard, *, threads: int, cache_bytes: int) -> None:
        self._task = task
        budget = CacheBudget(cache_bytes)
        self._batches = [
            Batches(name, eval_set, batch_size=task.batch_size, shard=shard, threads=threads, budget=budget)
            for name, eval_set in task.sets().items()
        ]
        first = self._batches[0].first()
        self.model: Any = task.build_model()
        self.builds = 1
        self._measurement: Measurement = measurement(task, self.model, first)
        self._steps: dict[str, Any] = {}
        for batches in self._batches:  # one trace per kind of batch, for the life of the process
            self._steps.setdefault(repr(batches.spec), self._traced(batches.spec))

    @property
    def traces(self) -> int:
        """How often a step was traced so far."""
        return sum(step.experimental_get_tracing_count() for step in self._steps.values())

    def read(self, tick: Tick) -> tuple[Stream, ...]:
        """Read every eval set once; later calls return what the first one found."""
        return tuple(batches.read(tick) for batches in self._batches)

    def restore(self, path: str) -> None:
        """Bind every variable, or let the task's own `restore` do it."""
        if self._task.restore is not None:
            self._task.restore(self.model, path)
        else:
            restore(self.model, path, self._task.checkpoint)

    def digest(self) -> str:
        """Digest of names, types, shapes and values of the model's variables, in their order."""
        digest = hashlib.sha256()
        for variable in self.model.weights:
            array = np.asarray(variable)
            digest.update(f"{variable.name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def evaluate(self, tick: Tick) -> States:
        """Sum metric states over this rank's own batches."""
        found: States = {}
        for batches in self._batches:
            step = self._steps[repr(batches.spec)]
            states = self._measurement.states() | {EXAMPLES: ExactSum((), "int64")}
            for batch in batches.own():
                outputs = step(batch)
                self._measurement.add(states, tf.nest.map_structure(np.asarray, outputs))
                states[EXAMPLES].add(np.int64(tf.nest.flatten(batch)[0].shape[0]))
                tick()
            found[batches.name] = states
        return found

    def save_weights(self, folder: Path) -> None:
        """A TensorFlow checkpoint of the model: `tf.train.Checkpoint(model=model).restore(folder / "weights")`."""
        tf.train.Checkpoint(model=self.model).write(str(folder / "weights"))

    def conclude(self, reduced: States) -> Mapping[str, Mapping[str, Value]]:
        """The final numbers, by eval set and metric."""
        return {name: self._measurement.conclude(states) for name, states in reduced.items()}

    def _traced(self, spec: Any) -> Any:
        return tf.function(self._measurement.step, input_signature=[spec])
