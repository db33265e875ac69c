"""Evaluate batches of one kind: a measurement in one trace, for the life of the process."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.compiled import CompiledMeasurement
from sidecar.evaluation.backends.tensorflow.data import array_of, of_examples
from sidecar.evaluation.backends.tensorflow.finite import finite_rows
from sidecar.evaluation.backends.tensorflow.measure import Measurement, measurement
from sidecar.evaluation.backends.tensorflow.model_predictions import ModelPredictions
from sidecar.evaluation.backends.tensorflow.randomness import require_equal
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.backends.tensorflow.replay import Changes, Replay
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.states import SetStates
from sidecar.evaluation.task import Task

NO_SEED: Final = np.zeros(2, np.int64)
"""Where nothing is drawn."""


class Step:
    """What is done with batches of one kind: one measurement, one trace for the life of the process."""

    def __init__(self, task: Task, model: Any, first: Any, spec: Any, *, autograph: bool) -> None:
        self.measurement: Measurement = measurement(task, model, first)
        self._kept = ModelPredictions(task.predictions, model, first) if task.predictions else None
        self._outputs: Any = None  # their structure, once traced
        identities = {name: metric.identity for name, metric in self.measurement.kept.items()}
        self.start = tf.nest.map_structure(tf.constant, identities)
        self.recurrent = RecurrentStates(model)
        self._is_compiled = isinstance(self.measurement, CompiledMeasurement)
        self._is_eager = self._is_compiled and getattr(model, "run_eagerly", False)
        self.run: Any = self._step
        if not self._is_eager:  # else as Keras does it, for steps that look at values
            if self.recurrent:
                spec = tf.nest.map_structure(partial(of_examples, self.recurrent.batch_size), spec)
            of_start = tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype), self.start)
            carried = [tf.TensorSpec(each.shape, each.dtype) for each in self.recurrent.values()]
            signature = [spec, of_start, tf.TensorSpec(NO_SEED.shape, NO_SEED.dtype), carried]
            self.run = tf.function(self._step, input_signature=signature, autograph=autograph)

    @property
    def traces(self) -> int:
        """How often it was traced so far."""
        return 0 if self._is_eager else int(self.run.experimental_get_tracing_count())

    def require_repeatable(self, batch: Batch, seed: Any, carried: list[Any], found: Any) -> None:
        """Raise `EvaluationError` unless a batch comes to the same again, to the bit."""
        again = self.run(batch, self.start, seed, carried)
        require_equal(*([array_of(each) for each in tf.nest.flatten(one)] for one in (found, again)))

    def changes(self, outputs: list[Any]) -> Changes:
        """Select the states of metrics that keep any in the first output of `run`, given as arrays."""
        return self.measurement.changes(tf.nest.pack_sequence_as(self._outputs, outputs))

    def replay(self) -> Replay:
        """Return what compares the batches of one eval set in turn."""
        measured = self.measurement
        return Replay(measured.kept, measured.tolerance, measured.by_batch, divides=not self.recurrent)

    def run_from(self, seed: Any, carried: list[Any], batch: Batch, start: Changes | None) -> Changes:
        """Evaluate a batch with metrics that saw others before."""
        given = self.start if start is None else tf.nest.map_structure(tf.constant, start)
        outputs, *_ = self.run(batch, given, seed, carried)
        return self.changes([tensor.numpy() for tensor in outputs])

    def add(self, states: SetStates, outputs: list[list[Any]], firsts: Sequence[int | None]) -> None:
        """Add several batches: of each output of `run` a list, an array for each batch."""
        self.measurement.add(states, tf.nest.pack_sequence_as(self._outputs, outputs), firsts)

    def _step(
        self, batch: Batch, start: Any, seed: Any, carried: list[Any]
    ) -> tuple[list[Any], list[Any], dict[str, Any], list[Any]]:
        """Return what the measurement needs of a batch, which rows of the predictions are finite, and what is kept.

        Last come the states with which recurrent layers go on, where `carried` are those that they begin with.
        """
        self._begin(seed, carried)
        predictions = None if self._kept is None else self._kept.predict(batch)
        if self._kept is not None and self._is_compiled:
            self._begin(seed, carried)  # a compiled model's own step predicts once more
        outputs, seen = self.measurement.step(batch, predictions, start)
        columns = {} if self._kept is None else self._kept.columns(batch, predictions)
        self._outputs = tf.nest.map_structure(lambda _: None, outputs)  # packing it for each batch would cost more
        finite = finite_rows(seen if predictions is None else predictions)
        return tf.nest.flatten(outputs), finite, columns, self.recurrent.values()

    def _begin(self, seed: Any, carried: list[Any]) -> None:
        if self.measurement.randomness.is_drawn:
            self.measurement.randomness.seed(seed)
        self.recurrent.assign(carried)
