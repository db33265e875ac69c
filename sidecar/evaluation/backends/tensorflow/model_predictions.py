"""Compute the columns that a task saves of every example, within the traced step."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import parts_of
from sidecar.evaluation.npy_table import refused_column
from sidecar.evaluation.predictions_columns import PredictionsColumns


class ModelPredictions:
    """Compute predictions and columns. A column that cannot be saved is refused on the first batch.

    Args:
        chosen: `Task.predictions`: True, or a function of (x, y, predictions).
        model: The model that predicts. The step of a compiled model predicts once more.
        first: A batch to try the columns on.
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
    return tf.nest.map_structure(lambda tensor: getattr(tensor, "_keras_mask", None), predictions)


def _tensor(name: str, column: Any) -> Any:
    if isinstance(column, tf.RaggedTensor | tf.SparseTensor | Mapping | list | tuple):
        raise refused_column(name, f"is a {type(column).__name__}: save tensors, with rows of one shape")
    tensor = tf.convert_to_tensor(column)
    if tensor.dtype == tf.string:
        raise refused_column(name, "holds text: save numbers, such as an index")
    if tensor.shape.rank == 0:
        raise refused_column(name, "is one number for a batch: save one row for each example")
    return tensor
