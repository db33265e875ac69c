"""Keep one value for every example in the order of the data. Imports numpy, never a framework.

For what no fixed number of sums can tell, such as the exact area under a ROC curve. Every example has one place, the
same on all ranks; a rank fills the places of its own batches and leaves the others zero, so that the sum of the ranks'
vectors is the vector of all, whoever evaluated what.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sidecar.errors import RecordError
from sidecar.evaluation.states.state import chosen_rows, matrix_of


class PerExampleValues:
    """A float64 for each of a known number of examples; 8 bytes each, on every rank.

    Args:
        examples: How many examples the whole eval set has.
    """

    def __init__(self, examples: int) -> None:
        self._values: NDArray[np.float64] = np.zeros(examples, np.float64)

    @property
    def rows(self) -> int:
        """One: whole sets are evaluated, so all of it travels."""
        return 1

    @property
    def width(self) -> int:
        """One for each example."""
        return len(self._values)

    def put(self, first: int, values: ArrayLike) -> None:
        """Fill the places from `first` on. Raises `ValueError` beyond the end, `TypeError` for more than a float64."""
        array = np.asarray(values)
        if not np.can_cast(array.dtype, np.float64):
            raise TypeError(f"values of dtype {array.dtype} do not fit into float64")
        if array.ndim != 1 or not 0 <= first <= first + len(array) <= len(self._values):
            raise ValueError(f"{array.shape} values from place {first} on do not fit into {len(self._values)} places")
        self._values[first : first + len(array)] = array

    def merge(self, other: Self) -> None:
        """Take over the places that another filled. Raises `ValueError` for another length, or places of both."""
        mine, theirs = self._values.view(np.int64), other._values.view(np.int64)
        if len(mine) != len(theirs) or ((mine != 0) & (theirs != 0)).any():
            raise ValueError(f"{len(theirs)} values cannot be merged into {len(mine)}, or fill the same places")
        mine += theirs

    def values(self) -> NDArray[np.float64]:
        """Return all values, in the order of the data."""
        return self._values.copy()

    def used(self) -> NDArray[np.bool_]:
        """Return whether any value is not zero."""
        return np.array([bool(self._values.view(np.int64).any())])

    def pack(self, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """See `State`: the bits of the values."""
        return self._values.view(np.int64).copy() if chosen_rows(self, rows) else np.zeros(0, np.int64)

    def unpack(self, packed: NDArray[np.int64], rows: NDArray[np.bool_] | None = None) -> None:
        """See `State`."""
        matrix = matrix_of(self, packed, len(chosen_rows(self, rows)))
        self._values = np.zeros(self.width, np.float64)
        for row in matrix:
            self._values.view(np.int64)[:] = row

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON: how many there are, and the bits of those that are not zero, by their place."""
        bits = self._values.view(np.int64)
        places = np.flatnonzero(bits)
        return {"reduction": "each", "examples": self.width, "places": places.tolist(), "bits": bits[places].tolist()}

    @classmethod
    def from_json(cls, parsed: dict[str, Any]) -> Self:
        """Read back what `to_json` wrote. Raises `RecordError` when it is anything else."""
        try:
            state = cls(parsed["examples"])
            state._values.view(np.int64)[np.array(parsed["places"], np.uint64)] = np.array(parsed["bits"], np.int64)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise RecordError(f"not the saved state of a metric: {error!r}") from error
        return state
