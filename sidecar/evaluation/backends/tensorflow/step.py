"""Evaluate batches of one structure: a step measures a batch with a function that is traced once per process."""

from collections.abc import Container, Iterable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.compiled import CompiledMeasurement
from sidecar.evaluation.backends.tensorflow.data import array_of, of_examples
from sidecar.evaluation.backends.tensorflow.finite import finite_rows
from sidecar.evaluation.backends.tensorflow.measure import Measurement, measurement
from sidecar.evaluation.backends.tensorflow.metrics_in_turn import LATE, Calls
from sidecar.evaluation.backends.tensorflow.model_predictions import ModelPredictions
from sidecar.evaluation.backends.tensorflow.randomness import require_equal
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.backends.tensorflow.replay import Changes, Replay
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.states import SetStates
from sidecar.evaluation.task import Task

NO_SEED: Final = np.zeros(2, np.int64)
"""The seed for a model that draws no random numbers."""


class Step:
    """Evaluate batches of one structure with one measurement and one trace, kept until the process ends."""

    def __init__(
        self, task: Task, model: Any, first: Any, spec: Any, *, autograph: bool, found: Container[str] = ()
    ) -> None:
        self.measurement: Measurement = measurement(task, model, first, found)
        self._predictions = ModelPredictions(task.predictions, model, first) if task.predictions else None
        self._outputs: Any = None  # the structure of the outputs, once traced
        self.start: Any = None
        self.recurrent = RecurrentStates(model)
        self._is_compiled = isinstance(self.measurement, CompiledMeasurement)
        self._is_eager = self._is_compiled and getattr(model, "run_eagerly", False)
        self._no_seed = tf.constant(NO_SEED)
        self._function: Any = None
        self._traced: Any = None  # the one trace, whose call takes half the time of a call of the function
        self._spec, self._autograph, self._dropped_traces = spec, autograph, 0
        self._prepare()

    def _prepare(self) -> None:
        """Prepare the function that the first call of `run` traces."""
        identities = {name: metric.identity for name, metric in self.measurement.stateful_metrics.items()}
        self.start = tf.nest.map_structure(tf.constant, identities)
        if not self._is_eager:  # an eager step may look at values, so it is not traced, as in Keras
            spec = self._spec
            if self.recurrent:
                spec = tf.nest.map_structure(partial(of_examples, self.recurrent.batch_size), spec)
            start_spec = tf.nest.map_structure(lambda state: tf.TensorSpec(state.shape, state.dtype), self.start)
            carried = [tf.TensorSpec(state.shape, state.dtype) for state in self.recurrent.values()]
            signature = [spec, start_spec, tf.TensorSpec(NO_SEED.shape, NO_SEED.dtype), carried]
            self._function = tf.function(self._step, input_signature=signature, autograph=self._autograph)

    def put_in_turn(self, names: Iterable[str]) -> None:
        """Update these metrics in turn from now on, because they have proved to be no sums; and trace again."""
        for name in names:
            self.measurement.put_in_turn(name, LATE)
        self._dropped_traces, self._function, self._traced = self.traces, None, None
        self._prepare()

    def run(self, batch: Batch, start: Any, seed: Any, carried: list[Any]) -> tuple[Any, ...]:
        """Evaluate a batch, as `_step` does. The first call traces it."""
        seed = self._no_seed if seed is NO_SEED else seed  # a conversion for each batch would cost more
        if self._function is None:
            return self._step(batch, start, seed, carried)
        if self._traced is None:
            self._traced = self._function.get_concrete_function()
        evaluated: tuple[Any, ...] = self._traced(batch, start, seed, carried)
        return evaluated

    @property
    def traces(self) -> int:
        """Return the number of times that the step has been traced."""
        traces = 0 if self._function is None else int(self._function.experimental_get_tracing_count())
        return self._dropped_traces + traces

    def require_repeatable(self, batch: Batch, seed: Any, carried: list[Any], evaluated: Any) -> None:
        """Raise `EvaluationError` unless a second evaluation of the batch gives the same bits."""
        again = self.run(batch, self.start, seed, carried)
        require_equal(*(_arrays_in(result) for result in (evaluated, again)))

    def changes(self, outputs: list[Any]) -> Changes:
        """Select, from the first output of `run` as arrays, the states of those metrics that keep states."""
        return self.measurement.changes(tf.nest.pack_sequence_as(self._outputs, outputs))

    def replay(self) -> Replay:
        """Return a new check that compares the batches of one eval set in order."""
        measured = self.measurement
        return Replay(measured.stateful_metrics, measured.tolerance, measured.by_batch, divides=not self.recurrent)

    def run_from(self, seed: Any, carried: list[Any], batch: Batch, start: Changes | None) -> Changes:
        """Evaluate a batch with metrics that begin with these states, as after other batches."""
        given = self.start if start is None else tf.nest.map_structure(tf.constant, start)
        outputs, *_ = self.run(batch, given, seed, carried)
        return self.changes([tensor.numpy() for tensor in outputs])

    def add(self, states: SetStates, outputs: list[list[Any]], firsts: Sequence[int | None]) -> None:
        """Add the outputs of several batches: for each output of `run`, a list with one array per batch."""
        self.measurement.add(states, tf.nest.pack_sequence_as(self._outputs, outputs), firsts)

    def _step(
        self, batch: Batch, start: Any, seed: Any, carried: list[Any]
    ) -> tuple[list[Any], list[Any], dict[str, Any], list[Any], Calls]:
        """Return outputs for the measurement, masks of finite rows, columns, recurrent states, and updates in turn.

        Recurrent layers begin with the states `carried`; the returned states are those after the batch.
        """
        self._begin(seed, carried)
        predictions = None if self._predictions is None else self._predictions.predict(batch)
        if self._predictions is not None and self._is_compiled:
            self._begin(seed, carried)  # the step of a compiled model predicts once more, from the same seed and states
        outputs, observed, calls = self.measurement.step(batch, predictions, start)
        columns = {} if self._predictions is None else self._predictions.columns(batch, predictions)
        self._outputs = tf.nest.map_structure(lambda _: None, outputs)  # packing it for each batch would cost more
        finite = finite_rows(observed if predictions is None else predictions)
        return tf.nest.flatten(outputs), finite, columns, self.recurrent.values(), calls

    def _begin(self, seed: Any, carried: list[Any]) -> None:
        if self.measurement.randomness.is_drawn:
            self.measurement.randomness.seed(seed)
        self.recurrent.assign(carried)


def _arrays_in(evaluated: Any) -> list[Any]:
    tensors = tf.nest.flatten(evaluated, expand_composites=True)
    return [array_of(tensor) for tensor in tensors if tensor is not None]
