"""Keep one value for every example in the order of the data. Imports numpy, never a framework.

Some metrics need more than a fixed number of sums, such as the exact area under a ROC curve. Every example has one
place, the same on all ranks. A rank fills the places of its own batches and leaves the others zero, so the sum of the
ranks' vectors is the vector of all examples, however they were divided.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sidecar.errors import RecordError
from sidecar.evaluation.states.state import chosen_rows, matrix_of


class PerExampleValues:
    """Keep a float64 for each of a known number of examples, in 8 bytes each on every rank.

    Args:
        examples: Number of examples in the whole eval set.
    """

    def __init__(self, examples: int) -> None:
        self._values: NDArray[np.float64] = np.zeros(examples, np.float64)

    @property
    def rows(self) -> int:
        """Number of rows: one, which holds all values."""
        return 1

    @property
    def width(self) -> int:
        """Number of columns: one for each example."""
        return len(self._values)

    def put(self, first: int, values: ArrayLike) -> None:
        """Fill the places from `first` on. Raises `ValueError` beyond the end, `TypeError` for a wider type."""
        array = np.asarray(values)
        if not np.can_cast(array.dtype, np.float64):
            raise TypeError(f"values of dtype {array.dtype} do not fit into float64")
        if array.ndim != 1 or not 0 <= first <= first + len(array) <= len(self._values):
            raise ValueError(f"{array.shape} values from place {first} on do not fit into {len(self._values)} places")
        self._values[first : first + len(array)] = array

    def merge(self, other: Self) -> None:
        """Copy the places that another state filled. Raises `ValueError` if lengths differ or both filled a place."""
        bits, others = self._values.view(np.int64), other._values.view(np.int64)
        if len(bits) != len(others) or ((bits != 0) & (others != 0)).any():
            raise ValueError(f"{len(others)} values cannot be merged into {len(bits)}, or fill the same places")
        bits += others

    def values(self) -> NDArray[np.float64]:
        """Return all values, in the order of the data."""
        return self._values.copy()

    def used(self) -> NDArray[np.bool_]:
        """Return a bool for the only row: whether any value is not zero."""
        return np.array([bool(self._values.view(np.int64).any())])

    def pack(self, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the bits of the values, as `State.pack` does."""
        return self._values.view(np.int64).copy() if chosen_rows(self, rows) else np.zeros(0, np.int64)

    def unpack(self, packed: NDArray[np.int64], rows: NDArray[np.bool_] | None = None) -> None:
        """Replace the values by those of a pack, as `State.unpack` does."""
        matrix = matrix_of(self, packed, len(chosen_rows(self, rows)))
        self._values = np.zeros(self.width, np.float64)
        for row in matrix:
            self._values.view(np.int64)[:] = row

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON: the number of examples, and places and bits of the values that are not zero."""
        bits = self._values.view(np.int64)
        places = np.flatnonzero(bits)
        return {"reduction": "each", "examples": self.width, "places": places.tolist(), "bits": bits[places].tolist()}

    @classmethod
    def from_json(cls, parsed: dict[str, Any]) -> Self:
        """Build the state from the output of `to_json`. Raises `RecordError` for anything else."""
        try:
            state = cls(parsed["examples"])
            state._values.view(np.int64)[np.array(parsed["places"], np.uint64)] = np.array(parsed["bits"], np.int64)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise RecordError(f"not the saved state of a metric: {error!r}") from error
        return state
