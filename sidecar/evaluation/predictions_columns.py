"""Choose the columns that a task saves: labels, predictions and weights, or values computed from them."""

from collections.abc import Callable, Mapping
from typing import Any

from sidecar.evaluation.data.elements import parts_of
from sidecar.evaluation.npy_table import columns_of
from sidecar.evaluation.task import call


class PredictionsColumns:
    """Compute the columns of one task, which `chosen`, `Task.predictions`, selects.

    `as_column` takes name and values of a column, and returns them as an array of the framework, or raises
    `EvaluationError`. `mask_of` returns the mask of predictions, in the same structure; None: there are no masks.
    """

    def __init__(
        self,
        chosen: bool | Callable[[Any, Any, Any], Any],
        as_column: Callable[[str, Any], Any],
        mask_of: Callable[[Any], Any] = lambda _: None,
    ) -> None:
        self._chosen, self._as_column, self._mask_of = chosen, as_column, mask_of

    def columns(self, batch: Any, predictions: Any) -> dict[str, Any]:
        """Return the columns of one batch, with one row for each example."""
        x, y, weights = parts_of(batch)
        if callable(self._chosen):
            chosen = call("Task(predictions=…)", self._chosen, x, y, predictions)
            columns = dict(chosen) if isinstance(chosen, Mapping) else columns_of("predictions", chosen)
        else:
            columns = columns_of("y", y) | columns_of("predictions", predictions)
            columns |= columns_of("weights", weights) | columns_of("mask", self._mask_of(predictions))
        return {str(name): self._as_column(str(name), column) for name, column in columns.items() if column is not None}
