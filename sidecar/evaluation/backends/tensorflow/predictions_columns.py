"""What a task keeps of every example, within the traced step: labels, predictions and weights, or what it chooses."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import unpack
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.npy_table import columns_of
from sidecar.evaluation.task import call


class PredictionsColumns:
    """Columns by name. What cannot be one is refused on the first batch, before anything is restored.

    Args:
        chosen: `Task.predictions`: True, or a function of (x, y, predictions).
        model: Is asked for predictions; a compiled model's own step asks it again.
        first: A batch to try it on.
    """

    def __init__(self, chosen: bool | Callable[[Any, Any, Any], Any], model: Any, first: Batch) -> None:
        self._chosen, self._model = chosen, model
        self.columns(first, self.predict(first))

    def predict(self, batch: Batch) -> Any:
        """What the model returns."""
        return self._model(_parts(batch)[0], training=False)

    def columns(self, batch: Batch, predictions: Any) -> dict[str, Any]:
        """A tensor for each column, with one row for each example."""
        x, y, weights = _parts(batch)
        if callable(self._chosen):
            kept = call("Task(predictions=…)", self._chosen, x, y, predictions)
            found = dict(kept) if isinstance(kept, Mapping) else columns_of("predictions", kept)
        else:
            masks = tf.nest.map_structure(lambda each: getattr(each, "_keras_mask", None), predictions)
            found = columns_of("y", y) | columns_of("predictions", predictions)
            found |= columns_of("weights", weights) | columns_of("mask", masks)
        return {str(name): _tensor(str(name), each) for name, each in found.items() if each is not None}


def _parts(batch: Batch) -> tuple[Any, Any, Any]:
    """Inputs, labels and weights; all of a batch that is none of these counts as inputs."""
    return unpack(batch) or (batch, None, None)


def _tensor(name: str, kept: Any) -> Any:
    if isinstance(kept, tf.RaggedTensor | tf.SparseTensor | Mapping | list | tuple):
        raise _refused(name, f"is a {type(kept).__name__}: keep tensors, with rows of one shape")
    tensor = tf.convert_to_tensor(kept)
    if tensor.dtype == tf.string:
        raise _refused(name, "holds text: keep numbers, such as an index")
    if tensor.shape.rank == 0:
        raise _refused(name, "is one number for a batch: keep one row for each example")
    return tensor


def _refused(column: str, complaint: str) -> EvaluationError:
    return EvaluationError("task_error", f"Task(predictions=…): column {column!r} {complaint}")
