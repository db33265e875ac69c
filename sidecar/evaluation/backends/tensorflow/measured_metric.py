"""Measure with a metric of Keras that a task lists: an additive state, or single values and their interval."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.evaluation.backends.tensorflow.data import array_of
from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric, label_of, undefined
from sidecar.evaluation.backends.tensorflow.libraries import class_named, is_keras_2, is_written_by_keras
from sidecar.evaluation.backends.tensorflow.mergeability import have_same_rows, probe, probe_twice
from sidecar.evaluation.backends.tensorflow.metrics_in_turn import attach_masks, mask_of
from sidecar.evaluation.backends.tensorflow.rounding import TOLERANCE, is_near, tolerance_of
from sidecar.evaluation.failures import first_line, task_error
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.average import Average
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.sliced import joined_places
from sidecar.evaluation.states import SetStates

OF_16_BITS: Final = "Let the last layer return float32: Dense(…, dtype='float32')"
"""The remedy for predictions of 16 bits that a metric or loss does not take."""

_NODE: Final = re.compile(r"\{\{function_node .*?\}\} |\s*\[Op:\w+\].*")
"""What TensorFlow writes into a message about the place of an operation."""


def per_example(metric: Any) -> Callable[..., Any] | None:
    """Return the function of (y, y_pred) whose plain mean the metric is; `None` for any other metric."""
    wrapper = class_named(metric, "MeanMetricWrapper")
    if wrapper is None or type(metric).update_state is not wrapper.update_state:
        return None
    function, arguments = getattr(metric, "_fn", None), getattr(metric, "_fn_kwargs", {})
    if function is None:
        return None
    return lambda y, y_pred: function(*without_short_integers(y, y_pred), **arguments)


class MeasuredMetric:
    """Measure with one metric of Keras, tried on a first batch, and refuse a metric whose states cannot be merged.

    A metric that is the mean of one value per example is measured by these values, and has an interval. Any other
    metric is measured by its additive states.
    """

    def __init__(self, metric: Any, y: Any, predictions: Any, weights: Any) -> None:
        require_labels_and_predictions(metric)
        with taking(label_of(metric), metric, y, predictions, weights):
            update(metric, y, predictions, weights)  # some metrics create their variables only here
        self._metric = KerasMetric(metric)
        batch, read = (y, predictions, weights), lambda: [self._metric.values()]
        if is_divisible := have_same_rows(batch):
            (probed,) = probe(batch, metric.reset_state, lambda part: update(metric, *part), read)
        else:  # rows of predictions are not examples, such as nodes
            (probed,) = probe_twice(batch, metric.reset_state, lambda part: update(metric, *part), read, lambda: None)
        of_batch = probed.whole if is_divisible else probed.first
        self._metric.require_additive(probed.in_turn, [probed.first, probed.second])
        self._metric.require_no_other_state()
        self.tolerance = tolerance_of(predictions.dtype.name) if isinstance(predictions, tf.Tensor) else TOLERANCE
        is_plain = weights is None and mask_of(predictions) is None
        self._function = per_example(metric) if is_plain and self._metric.divides else None
        if self._function is not None:
            values = array_of(self._function(y, predictions))
            are_of_rows = not isinstance(predictions, tf.Tensor) or values.shape[:1] == tuple(predictions.shape[:1])
            if not are_of_rows or not _is_mean_of(values, of_batch):
                self._function = None
        self._average = Average("float32")
        self._is_accuracy = any("Accuracy" in kind.__name__ for kind in type(metric).__mro__)

    def depends_on_batches(self, whole: tuple[Any, Any, Any], halves: Sequence[tuple[Any, Any, Any]]) -> bool:
        """Return whether the metric for a batch (y, predictions, weights) differs from the sum of its halves."""
        of_whole, *of_halves = (tf.nest.map_structure(array_of, self.step(*part)) for part in (whole, *halves))
        return self.differ(of_whole, of_halves)

    def differ(self, of_whole: Any, of_halves: Sequence[Any]) -> bool:
        """Return whether what `step` returned for a batch differs from what it returned for its halves."""
        if self._function is None:
            return self._metric.depends_on_batches(of_whole, of_halves, self.tolerance)
        return not is_near(of_whole.ravel(), joined(list(of_halves)), self.tolerance)

    @property
    def metric(self) -> Any:
        """Return the metric of Keras."""
        return self._metric.metric

    @property
    def stateful_metric(self) -> KerasMetric | None:
        """Return the metric that holds its states from batch to batch; `None` if single values are measured."""
        return self._metric if self._function is None else None

    def step(self, y: Any, predictions: Any, weights: Any, start: Any = None) -> Any:
        """Return, within the traced step, the single values of a batch or the change of the states by it.

        `start`: the states before the batch; `None` for the identity.
        """
        if self._function is not None:
            return tf.convert_to_tensor(self._function(y, predictions))
        self._metric.reset(start)
        update(self._metric.metric, y, predictions, weights)
        return self._metric.read()

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return empty states, also of slices if single values are measured."""
        if self._function is None:
            return self._metric.states(info)
        return self._average.states(info) | sliced.states_by_slice(self._average.states, info)

    def add(self, states: SetStates, outputs: Any, examples: Sequence[int], firsts: Sequence[int | None]) -> None:
        """Add the outputs of `step` for several batches: a list with one array per batch for each tensor.

        `examples` has the number of examples in each batch, and `firsts` that of its first one in the whole set.
        """
        if self._function is None:
            self._metric.add(states, outputs)
            return
        self._add(states, outputs, examples, firsts)
        if sliced.BY_SLICE not in states:
            return
        values, places = np.concatenate(outputs), joined_places(firsts, examples)
        sliced.require_rows(str(self._metric.metric.name), len(places), {len(values)})
        for of_slices, _, chosen in sliced.parts_of(states, places):
            self._add(of_slices, [values[chosen]], [len(chosen)], [places[chosen]])

    def _add(
        self,
        states: SetStates,
        outputs: Any,
        examples: Sequence[int],
        firsts: Sequence[int | NDArray[np.intp] | None],
    ) -> None:
        are_bools = all(values.dtype == np.bool_ for values in outputs)
        self._average.add(
            states,
            joined(outputs),
            one_per_example=all(values.size == size for values, size in zip(outputs, examples, strict=True)),
            is_proportion=are_bools or self._is_accuracy,
            places=places_of(outputs, examples, firsts),
        )

    def compute(self, states: SetStates) -> MetricResult:
        """Return the final number, or several by the names that the metric gives them."""
        return sliced.with_slices(self._compute(states), states, self._compute)

    def _compute(self, states: SetStates) -> MetricResult:
        name, goal = str(self._metric.metric.name), self._metric.goal()
        if self._function is not None:
            interval = self._average.interval(states, is_proportion=self._is_accuracy)
            return MetricResult({name: value(self._average.mean(states), goal, interval)})
        notes = undefined([name]) if self._metric.is_undefined(states) else ()
        return MetricResult(
            {key: value(number, goal) for key, number in self._metric.numbers(states, name).items()}, notes=notes
        )


def places_of(
    batches: Sequence[NDArray[Any]], examples: Sequence[int], firsts: Sequence[int | NDArray[np.intp] | None]
) -> NDArray[np.intp] | None:
    """Return the number of each value's example in the whole set; `None` unless each example has one value.

    `firsts` has the number of the first example of a batch, or those of all examples of a slice.
    """
    parts = []
    for values, size, first in zip(batches, examples, firsts, strict=True):
        if first is None or values.size != size:
            return None
        parts.append(first if isinstance(first, np.ndarray) else np.arange(first, first + size))
    return np.concatenate(parts)


def joined(batches: list[NDArray[Any]]) -> NDArray[np.float32]:
    """Return the values of several batches, of any shapes, as one vector."""
    return np.concatenate([values.ravel() for values in batches]).astype(np.float32, copy=False)


def _is_mean_of(values: NDArray[Any], states: list[Any]) -> bool:
    """Return whether the states of a mean, total and count, are those of these values, one for each example."""
    total, count = states
    if values.ndim != 1 or (values.dtype.kind == "f" and values.dtype.itemsize > 4):  # noqa: PLR2004 - bytes of a float32
        return False
    return count == values.size and np.allclose(values.sum(dtype=np.float64), total, rtol=TOLERANCE, equal_nan=True)


def require_labels_and_predictions(metric: Any) -> None:
    """Raise `EvaluationError` for metrics such as `Mean`, which would use predictions as weights without an error."""
    parameters = list(
        inspect.signature(type(metric).update_state).parameters
    )  # tf_keras wraps the method of the object
    if parameters[2:3] == ["sample_weight"]:
        raise task_error(
            f"metric {metric.name!r} ({type(metric).__name__}) takes values and their weights, not labels and "
            f"predictions: for a mean use keras.metrics.MeanMetricWrapper with a function of (y, y_pred)"
        )


def without_short_integers(y: Any, predictions: Any) -> tuple[Any, Any]:
    """Return labels and predictions; if both are integers of 8, 16 or 32 bits, as int64.

    Differences of the pixels of two images would wrap around modulo 256 in TensorFlow.
    """
    parts = (y, predictions)
    if not all(tf.is_tensor(part) and part.dtype.is_integer and part.dtype.size < tf.int64.size for part in parts):
        return parts
    wide = tf.cast(predictions, tf.int64)
    attach_masks(mask_of(predictions), wide)
    return tf.cast(y, tf.int64), wide


def masked(weights: Any, predictions: Any) -> Any:
    """Return the weights, with 0 where the model masks its predictions; `None` if every weight is 1."""
    mask = mask_of(predictions)
    if mask is None:
        return weights
    unmasked = tf.cast(mask, tf.float32)
    if weights is None:
        return unmasked
    weights = tf.cast(weights, tf.float32)
    while weights.shape.rank < unmasked.shape.rank:
        weights = weights[..., tf.newaxis]
    return weights * unmasked


def require_weights_for_mask(weights: Any, predictions: Any) -> None:
    """Raise `EvaluationError` for one weight per example where Keras 3 multiplies weights with a mask of positions."""
    mask = mask_of(predictions)
    if weights is not None and mask is not None and weights.shape.rank < mask.shape.rank:
        raise task_error(
            f"the model masks positions {tuple(mask.shape)}, and there is one weight for each example, "
            f"{tuple(weights.shape)}, which Keras cannot multiply: give a weight for each position, such as "
            f"np.repeat(weights[:, None], y.shape[1], axis=1)"
        )


@contextmanager
def taking_weights(what: str, weights: Any) -> Iterator[None]:
    """Convert an error of TensorFlow about shapes, if there are weights, into one that names these."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if not isinstance(weights, tf.Tensor):
            raise
        raise task_error(
            f"{what} does not take weights {tuple(weights.shape)}: it has another number of values for a batch, as "
            f"with axis=0 or a mask. Leave the weights out, or give one for each of its values ({error.message})"
        ) from error


@contextmanager
def taking(what: str, used: Any, y: Any, predictions: Any, weights: Any) -> Iterator[None]:
    """Convert an error of a metric or loss that Keras wrote into one sentence about its labels and predictions.

    Code of a user keeps its traceback.
    """
    try:
        with taking_weights(what, weights):
            yield
    except (TypeError, ValueError, tf.errors.OpError) as error:
        if not _is_of_keras(used):
            raise
        reason = _NODE.sub("", first_line(error)).strip().rstrip(".")
        remedy = _remedy(used, y, predictions)
        raise task_error(
            f"{what} does not take labels {_described(y)} and predictions {_described(predictions)}: "
            f"{reason:.200}{remedy and '. '}{remedy}"
        ) from error


def _is_of_keras(used: Any) -> bool:
    """Return whether Keras wrote a metric or loss, and the function that it calls."""
    function = getattr(used, "_fn", None) or getattr(used, "fn", None) or used
    return all(is_written_by_keras(code if inspect.isroutine(code) else type(code)) for code in (used, function))


def _remedy(used: Any, y: Any, predictions: Any) -> str:
    """Return the line to write for labels and predictions that a metric or loss of Keras does not take, if known."""
    if not tf.is_tensor(y) or not tf.is_tensor(predictions) or not predictions.shape.rank:
        return ""
    name, classes = getattr(used, "__name__", type(used).__name__), predictions.shape[-1]
    are_numbers, is_sparse = y.shape.rank < predictions.shape.rank, name.lower().startswith("sparse")
    library = sys.modules[type(used).__module__.partition(".")[0]] if hasattr(used, "name") else None
    has_sparse = any(hasattr(getattr(library, of, None), f"Sparse{name}") for of in ("metrics", "losses"))
    sparse = f"Sparse{name}, or " if has_sparse else ""
    remedies = (
        (y.dtype == tf.string, "Labels must be numbers: write np.searchsorted(names, labels)"),
        (
            are_numbers and predictions.dtype in (tf.float16, tf.bfloat16),
            OF_16_BITS,
        ),
        (
            is_sparse and not are_numbers and y.shape[-1] == classes,
            f"Labels have a column for each class: write {name[len('sparse') :].lstrip('_')}, or labels.argmax(-1)",
        ),
        (
            are_numbers and "IoU" in name,
            f"Write OneHotMeanIoU({classes}, sparse_y_true=True), which chooses the class of each example",
        ),
        (
            are_numbers and not is_sparse,
            f"Labels are numbers of classes: write {sparse}keras.utils.to_categorical(labels, {classes})",
        ),
    )
    return next((remedy for applies, remedy in remedies if applies), "")


def _described(part: Any) -> str:
    """Return type and shape of a tensor, for a message."""
    return f"{part.dtype.name} {tuple(part.shape)}" if tf.is_tensor(part) else type(part).__name__


def update(metric: Any, y: Any, predictions: Any, weights: Any) -> None:
    """Update a metric as Keras does: without weights, `update_state` is called without that argument."""
    y, predictions = without_short_integers(y, predictions)
    if is_keras_2(metric):  # metrics of tf_keras do not read masks: its models turn masks into weights
        weights = masked(weights, predictions)
    require_weights_for_mask(weights, predictions)
    if weights is None:
        metric.update_state(y, predictions)
    else:
        metric.update_state(y, predictions, sample_weight=weights)
