"""Evaluate batches of one structure: a step measures a batch with a function that is traced once per process."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property, partial
from itertools import chain
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.compiled import CompiledMeasurement
from sidecar.evaluation.backends.tensorflow.data import array_of, of_examples, repacked
from sidecar.evaluation.backends.tensorflow.finite import finite_rows
from sidecar.evaluation.backends.tensorflow.graph_memory import assigns_nothing, clusters_graphs, keeps_nothing
from sidecar.evaluation.backends.tensorflow.libraries import layers_of
from sidecar.evaluation.backends.tensorflow.measure import Measurement, measurement
from sidecar.evaluation.backends.tensorflow.metrics_in_turn import LATE, Calls, attach_masks, mask_of
from sidecar.evaluation.backends.tensorflow.model import preprocessing_of
from sidecar.evaluation.backends.tensorflow.overlap import Overlap
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.backends.tensorflow.replay import Changes
from sidecar.evaluation.batch_dependence import MODEL
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import parts_of
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.metrics.metric import EvalSetInfo
from sidecar.evaluation.npy_table import refused_column
from sidecar.evaluation.predictions_columns import PredictionsColumns
from sidecar.evaluation.row_comparison import are_near, have_alike_rows, rows_differ, tolerance_for
from sidecar.evaluation.states import SetStates
from sidecar.evaluation.task import Task

_OF_VALUES: Final = frozenset({"Where", "Unique", "UniqueV2", "UniqueWithCounts", "DynamicPartition"})
"""Operations whose results have shapes that depend on values, such as those of `tf.boolean_mask`."""

_SHAPES_OF_VALUES: Final = (
    "TF_XLA_FLAGS or set_jit lets XLA compile parts of the model, and shapes in it depend on values, as with "
    "tf.boolean_mask: the last bits of numbers may depend on the batches that a process saw before. Leave XLA out to "
    "get the same bits each time"
)

_UNREAD: Final = np.zeros(0)

NO_SEED: Final = np.zeros(2, np.int64)
"""The seed for a model that draws no random numbers."""


class ModelPredictions:
    """Compute predictions and columns. A column that cannot be saved is refused on the first batch, `first`.

    `chosen`: `Task.predictions`. The step of a compiled model predicts once more.
    """

    def __init__(self, chosen: bool | Callable[[Any, Any, Any], Any], model: Any, first: Batch) -> None:
        self._columns, self._model = PredictionsColumns(chosen, _tensor, _masks), model
        self.columns(first, self.predict(first))

    def predict(self, batch: Batch) -> Any:
        """Return the model's predictions for a batch."""
        return self._model(repacked(parts_of(batch)[0]), training=False)

    def columns(self, batch: Batch, predictions: Any) -> dict[str, Any]:
        """Return a tensor for each column, with one row for each example."""
        return self._columns.columns(batch, predictions)


def _masks(predictions: Any) -> Any:
    return tf.nest.map_structure(mask_of, predictions)


def _tensor(name: str, column: Any) -> Any:
    if isinstance(column, tf.RaggedTensor | tf.SparseTensor | Mapping | list | tuple):
        raise refused_column(name, f"is a {type(column).__name__}: save tensors, with rows of one shape")
    tensor = tf.convert_to_tensor(column)
    if tensor.dtype == tf.string:
        raise refused_column(name, "holds text: save numbers, such as an index")
    if tensor.shape.rank == 0:
        raise refused_column(name, "is one number for a batch: save one row for each example")
    return tensor


class Evaluation(NamedTuple):
    """The results of a step for one batch.

    Attributes:
        outputs: The flat outputs for the measurement.
        finite: Masks of finite rows of the predictions.
        columns: The columns that the task saves, by name.
        carried: The states of recurrent layers after the batch.
        calls: The updates of the metrics in turn.
        predictions: The predictions as a flat list, with `None` for what is not a tensor; empty if they are unknown.
        masks: The masks that Keras attached to the predictions, or `None`.
    """

    outputs: list[Any]
    finite: list[Any]
    columns: dict[str, Any]
    carried: list[Any]
    calls: Calls
    predictions: list[Any]
    masks: list[Any]

    def arrays(self) -> list[Any]:
        """Return all results as a flat list of arrays."""
        tensors = tf.nest.flatten(tuple(self), expand_composites=True)
        return [array_of(tensor) for tensor in tensors if tensor is not None]

    def rows(self) -> list[Any] | None:
        """Return the predictions as arrays with one row for each example; `None` if they are not."""
        if not self.predictions or not all(isinstance(tensor, tf.Tensor) for tensor in self.predictions):
            return None
        if not all(tensor.shape.rank for tensor in self.predictions):
            return None
        return [array_of(tensor) for tensor in self.predictions]


class Step:
    """Evaluate batches of one structure with one measurement and one trace, kept until the process ends."""

    def __init__(
        self,
        task: Task,
        model: Any,
        first: Any,
        spec: Any,
        set_back: Callable[[], None],
        *,
        autograph: bool,
        found: Container[str] = (),
    ) -> None:
        self._preprocess = preprocessing_of(model)
        first = self._preprocess(first)
        self.measurement: Measurement = measurement(task, model, first, found)
        self._predictions = ModelPredictions(task.predictions, model, first) if task.predictions else None
        self._outputs: Any = None  # the structure of the outputs, once traced
        self._predicted: Any = None  # that of the predictions
        self._tolerance = max(self.measurement.tolerance, tolerance_for(_types_of(model)))
        self.start: Any = None
        self.recurrent = RecurrentStates(model)
        self._is_eager = self._is_compiled and getattr(model, "run_eagerly", False)
        self._no_seed = tf.constant(NO_SEED)
        self._function: _TracedFunction | None = None
        self.spec, self._dropped_traces = spec, 0
        self._traced = partial(_TracedFunction, set_back=set_back, autograph=autograph)
        self.overlap = Overlap()
        self._prepare()

    def _prepare(self) -> None:
        """Prepare the function that the first call of `run` traces."""
        identities = {name: metric.identity for name, metric in self.measurement.stateful_metrics.items()}
        self.start = tf.nest.map_structure(tf.constant, identities)
        if not self._is_eager:  # an eager step may look at values, so it is not traced, as in Keras
            spec = self.spec
            if self.recurrent:
                spec = tf.nest.map_structure(partial(of_examples, self.recurrent.batch_size), spec)
            start_spec = tf.nest.map_structure(lambda state: tf.TensorSpec(state.shape, state.dtype), self.start)
            carried = [tf.TensorSpec(state.shape, state.dtype) for state in self.recurrent.values()]
            signature = [spec, start_spec, tf.TensorSpec(NO_SEED.shape, NO_SEED.dtype), carried]
            self._function = self._traced(self._step, signature)

    def put_in_turn(self, names: Iterable[str]) -> None:
        """Update these metrics in turn from now on, because they have proved to be no sums; and trace again."""
        for name in names:
            self.measurement.put_in_turn(name, LATE)
        self._dropped_traces, self._function = self.traces, None
        self._prepare()

    def run(self, batch: Batch, start: Any, seed: Any, carried: list[Any]) -> Evaluation:
        """Evaluate a batch, as `_step` does. The first call traces it."""
        seed = self._no_seed if seed is NO_SEED else seed  # a conversion for each batch would cost more
        return Evaluation(*(self._function or self._step)(batch, start, seed, carried))

    @property
    def variables(self) -> tuple[Any, ...]:
        """Return the variables that the traced step reads; none before it is traced."""
        return () if self._function is None else self._function.variables

    @property
    def keeps_nothing(self) -> bool:
        """Return whether no call of the traced step can have an effect on another."""
        return self._function is not None and self._function.keeps_nothing

    def at_once(self) -> Executor | None:
        """Return the threads that call the traced step for several batches at the same time; None: no two of them."""
        may_overlap = self._function is not None and self._function.may_overlap
        return self.overlap.executor() if may_overlap else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the result should know about the traced step."""
        return (_SHAPES_OF_VALUES,) if self._function is not None and self._function.has_shapes_of_values else ()

    @property
    def _is_compiled(self) -> bool:
        return isinstance(self.measurement, CompiledMeasurement)

    @property
    def traces(self) -> int:
        """Return the number of times that the step has been traced."""
        return self._dropped_traces + (0 if self._function is None else self._function.traces)

    def outputs_of(self, evaluated: Evaluation) -> Any:
        """Return the outputs for the measurement as arrays, in their structure."""
        return tf.nest.pack_sequence_as(self._outputs, [array_of(tensor) for tensor in evaluated.outputs])

    def arrays_of(self, evaluated: Evaluation, *, with_inputs: bool) -> list[Any]:
        """Return the outputs for `add`: arrays, or nothing for what metrics were updated with if nobody needs that."""
        last = 0 if with_inputs else self.measurement.inputs.width
        tensors = evaluated.outputs[: len(evaluated.outputs) - last]
        return [tensor.numpy() for tensor in tensors] + [_UNREAD] * last

    def changes(self, outputs: list[Any]) -> Changes:
        """Select, from the first output of `run` as arrays, the states of those metrics that keep states."""
        return self.measurement.changes(tf.nest.pack_sequence_as(self._outputs, outputs))

    def dependent(
        self, whole: Batch, halves: list[Batch], of_whole: Evaluation, of_halves: list[Evaluation]
    ) -> set[str]:
        """Return the names of metrics that depend on the division into batches, and `MODEL` if the predictions do.

        Metrics of the task are given the same predictions for a batch and its halves. A `test_step` of one's own
        predicts by itself, so its metrics depend on the division if its predictions do.
        """
        if not self._is_compiled:
            if self._predicts_otherwise(of_whole, of_halves):
                return self.dependent_given_predictions(whole, halves, of_whole, of_halves) | {MODEL}
            suspected = self.measurement.suspected(self.outputs_of(of_whole), list(map(self.outputs_of, of_halves)))
            if not suspected:
                return set()
            return self.dependent_given_predictions(whole, halves, of_whole, of_halves, suspected)
        if self.measurement.randomness.is_drawn:
            return set()
        if self._predicts_otherwise(of_whole, of_halves):
            return {MODEL}
        changes, *parts = (self.measurement.changes(self.outputs_of(each)) for each in (of_whole, *of_halves))
        return self.measurement.dependent(changes, parts)

    def dependent_given_predictions(
        self,
        whole: Batch,
        halves: list[Batch],
        of_whole: Evaluation,
        of_halves: Sequence[Evaluation] = (),
        suspected: Container[str] | None = None,
    ) -> set[str]:
        """Return the names of the task's metrics that depend on the division into batches, given the predictions.

        `suspected`: the names that come into question; `None` for all.
        """
        if self._is_compiled or any(tensor is None for tensor in of_whole.predictions):
            return set()
        predictions, *own = map(self._predictions_of, (of_whole, *of_halves))
        prepared, *parts = map(self._preprocess, (whole, *halves))
        return self.measurement.dependent_given_predictions(prepared, parts, predictions, own, suspected)

    def _predictions_of(self, evaluated: Evaluation) -> Any:
        """Return the predictions in their structure, with their masks."""
        attach_masks(evaluated.masks, evaluated.predictions)
        return tf.nest.pack_sequence_as(self._predicted, evaluated.predictions)

    def differ(self, sizes: list[int], one: list[Evaluation], other: list[Evaluation]) -> bool:
        """Return whether batches of these sizes, padded in two ways, have different predictions or numbers."""
        for first, second in zip(one, other, strict=True):
            rows, others = first.rows(), second.rows()
            if rows is None or others is None or not have_alike_rows(rows, [others]):
                continue
            if rows_differ(rows, [others], self._tolerance):
                return True
        numbers, others_numbers = self._numbers(sizes, one), self._numbers(sizes, other)
        return any(not are_near(number, others_numbers[name], self._tolerance) for name, number in numbers.items())

    def gives_rows(self, evaluated: Evaluation) -> bool:
        """Return whether all results for a batch are rows of its examples, and none is a sum, such as a state."""
        examples = len(next(iter(evaluated.rows() or ()), ()))
        floats = [tensor for tensor in evaluated.outputs if tensor.dtype.is_floating]
        return not self.measurement.stateful_metrics and all(each.shape[:1] == (examples,) for each in floats)

    def has_rows_of(self, place: slice, whole: Evaluation, few: Evaluation) -> bool:
        """Return whether the results for the examples at this place of a batch alone are their rows in the batch.

        False if the predictions are not rows. Results that are not rows are not compared.
        """
        rows, of_few = whole.rows(), few.rows()
        if not rows or not of_few:
            return False
        examples, size = place.stop - place.start, len(rows[0])
        if any(len(array) != size for array in rows) or any(len(array) != examples for array in of_few):
            return False
        for one, other in zip(whole.outputs, few.outputs, strict=True):
            if one.shape[:1] == (size,) and other.shape[:1] == (examples,):
                rows.append(array_of(one))
                of_few.append(array_of(other))
        return not rows_differ([array[place] for array in rows], [of_few], self._tolerance)

    def _predicts_otherwise(self, of_whole: Evaluation, of_halves: list[Evaluation]) -> bool:
        """Return whether the predictions for an example depend on the other examples of its batch."""
        if self.measurement.randomness.is_drawn:  # then they depend on its number
            return False
        rows, halves = of_whole.rows(), [half.rows() for half in of_halves]
        known = [half for half in halves if half is not None]
        if rows is None or len(known) < len(halves) or not have_alike_rows(rows, known):
            return False
        return rows_differ(rows, known, self._tolerance)

    def _numbers(self, sizes: list[int], evaluated: list[Evaluation]) -> dict[str, float]:
        """Return the final numbers over batches of these sizes alone."""
        arrays = [[array_of(tensor) for tensor in each.outputs] for each in evaluated]
        states = self.measurement.states(EvalSetInfo(sum(sizes), Shard(0, 1), intervals=False))
        self.add(
            states, [list(each) for each in zip(*arrays, strict=True)], [sum(sizes[:n]) for n in range(len(sizes))]
        )
        return {name: float.fromhex(each.hex) for name, each in self.measurement.compute(states).values.items()}

    def run_from(self, seed: Any, carried: list[Any], batch: Batch, start: Changes | None) -> Changes:
        """Evaluate a batch with metrics that begin with these states, as after other batches."""
        given = self.start if start is None else tf.nest.map_structure(tf.constant, start)
        return self.measurement.changes(self.outputs_of(self.run(batch, given, seed, carried)))

    def add(self, states: SetStates, outputs: list[list[Any]], firsts: Sequence[int | None]) -> None:
        """Add the outputs of several batches: for each output of `run`, a list with one array per batch."""
        self.measurement.add(states, tf.nest.pack_sequence_as(self._outputs, outputs), firsts)

    def _step(self, batch: Batch, start: Any, seed: Any, carried: list[Any]) -> tuple[Any, ...]:
        """Return the parts of an `Evaluation`.

        Recurrent layers begin with the states `carried`; the returned states are those after the batch.
        """
        self._begin(seed, carried)
        batch = self._preprocess(batch)
        predictions = None if self._predictions is None else self._predictions.predict(batch)
        if self._predictions is not None and self._is_compiled:
            self._begin(seed, carried)  # the step of a compiled model predicts once more, from the same seed and states
        outputs, observed, calls = self.measurement.step(batch, predictions, start)
        columns = {} if self._predictions is None else self._predictions.columns(batch, predictions)
        self._outputs = tf.nest.map_structure(lambda _: None, outputs)  # packing it for each batch would cost more
        predicted = observed if predictions is None else predictions
        self._predicted = tf.nest.map_structure(lambda _: None, predicted)
        leaves = tf.nest.flatten(predicted)
        masks = list(map(mask_of, leaves))
        tensors = [leaf if isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor) else None for leaf in leaves]
        return tf.nest.flatten(outputs), finite_rows(predicted), columns, self.recurrent.values(), calls, tensors, masks

    def _begin(self, seed: Any, carried: list[Any]) -> None:
        if self.measurement.randomness.is_drawn:
            self.measurement.randomness.seed(seed)
        self.recurrent.assign(carried)


class _TracedFunction:
    """Trace a function of a batch when it is first called.

    XLA's auto-clustering compiles for most shapes at their second batch, which changes the last bits. So the first
    batch of each shape is evaluated twice, and all numbers are of compiled code.

    What the task's code keeps is set back before and after: a value kept by an earlier call would be a constant of the
    trace, and a tensor of the trace is of no use elsewhere.
    """

    def __init__(
        self, function: Callable[..., Any], signature: list[Any], set_back: Callable[[], None], *, autograph: bool
    ) -> None:
        self._set_back = set_back
        self._function = tf.function(function, input_signature=signature, autograph=autograph)
        self._trace: Any = None  # the only one, whose call takes half the time of a call of the function
        self._is_clustered = clusters_graphs()
        self._warm: set[str] = set()  # shapes of batches that were evaluated
        self._warming = Lock()

    def __call__(self, batch: Batch, *others: Any) -> Any:
        """Call the one trace."""
        if self._trace is None:
            self._set_back()
            self._trace = self._function.get_concrete_function()
            self._set_back()
        if self._is_clustered:
            with self._warming:
                if (shapes := _shapes_of(batch)) not in self._warm:
                    self._warm.add(shapes)
                    self._trace(batch, *others)
        return self._trace(batch, *others)

    @property
    def variables(self) -> tuple[Any, ...]:
        """Return the variables that the trace reads; none before the first call."""
        return () if self._trace is None else tuple(self._trace.graph.variables)

    @cached_property
    def keeps_nothing(self) -> bool:
        """Return whether no call can have an effect on another. It is called after the first call."""
        return keeps_nothing(self._trace.graph)

    @cached_property
    def has_shapes_of_values(self) -> bool:
        """Return whether XLA compiles for shapes that depend on values. It is called after the first call."""
        if not self._is_clustered or self._trace is None:
            return False
        graph = self._trace.graph.as_graph_def()
        nodes = chain(graph.node, *(function.node_def for function in graph.library.function))
        return any(node.op in _OF_VALUES or node.op.startswith("NonMaxSuppression") for node in nodes)

    @property
    def may_overlap(self) -> bool:
        """Return whether calls may run at the same time. Before the first call that is unknown."""
        return self._trace is not None and self._changes_nothing

    @cached_property
    def _changes_nothing(self) -> bool:
        return self.keeps_nothing and assigns_nothing(self._trace.graph)

    @property
    def traces(self) -> int:
        """Return the number of traces that were made."""
        return int(self._function.experimental_get_tracing_count())


def _shapes_of(batch: Batch) -> str:
    return str([tuple(tensor.shape) for tensor in tf.nest.flatten(batch, expand_composites=True) if tensor is not None])


def _types_of(model: Any) -> set[str]:
    """Return the names of the float types that a model computes with."""
    types = {str(getattr(layer, "compute_dtype", "")) for layer in layers_of(model)}
    if tf.config.list_logical_devices("GPU") and tf.config.experimental.tensor_float_32_execution_enabled():
        types.add("float16")  # as many bits
    return types
