"""Compute within the traced step what a task saves of every example."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import parts_of
from sidecar.evaluation.predictions_columns import PredictionsColumns, refused_column


class ModelPredictions:
    """Predictions of a model, and columns made of them. A column that cannot be saved is refused on the first batch.

    Args:
        chosen: `Task.predictions`: True, or a function of (x, y, predictions).
        model: Is asked for predictions; a compiled model's own step asks it again.
        first: A batch to try it on.
    """

    def __init__(self, chosen: bool | Callable[[Any, Any, Any], Any], model: Any, first: Batch) -> None:
        self._columns, self._model = PredictionsColumns(chosen, _tensor, _masks), model
        self.columns(first, self.predict(first))

    def predict(self, batch: Batch) -> Any:
        """Return the model's predictions for a batch."""
        return self._model(parts_of(batch)[0], training=False)

    def columns(self, batch: Batch, predictions: Any) -> dict[str, Any]:
        """Return a tensor for each column, with one row for each example."""
        return self._columns.columns(batch, predictions)


def _masks(predictions: Any) -> Any:
    return tf.nest.map_structure(lambda each: getattr(each, "_keras_mask", None), predictions)


def _tensor(name: str, kept: Any) -> Any:
    if isinstance(kept, tf.RaggedTensor | tf.SparseTensor | Mapping | list | tuple):
        raise refused_column(name, f"is a {type(kept).__name__}: keep tensors, with rows of one shape")
    tensor = tf.convert_to_tensor(kept)
    if tensor.dtype == tf.string:
        raise refused_column(name, "holds text: keep numbers, such as an index")
    if tensor.shape.rank == 0:
        raise refused_column(name, "is one number for a batch: keep one row for each example")
    return tensor
