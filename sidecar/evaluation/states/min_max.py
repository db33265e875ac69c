"""Keep the largest or smallest value per element. Imports numpy, never a framework.

Each rank has one row of the matrix: a 1 if it saw any values, then the bits of its values. The sum of all matrices
holds the rows of all ranks, and the largest or smallest value is taken from them. So a maximum needs no other
collective than a sum.
"""

import math
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sidecar.errors import RecordError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states.state import chosen_rows, matrix_of

Reduction = Literal["max", "min"]

_SAW: Final = 1  # precedes the values, to distinguish a rank that saw nothing from one that saw zeros


class MinMax:
    """Keep an array of maxima or minima. A new one is infinite (integers: the limit of int64). NaN exceeds all numbers.

    Args:
        shape: Shape of the array.
        dtype: Type of the values. Floats are stored in float64, integers and bool in int64; uint64 does not fit.
        reduction: "max" or "min".
        shard: This rank, and the number of ranks.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, reduction: Reduction, shard: Shard) -> None:
        self.shape, self.dtype, self.reduction = shape, dtype, reduction
        is_integral = dtype != "bfloat16" and np.dtype(dtype).kind in "biu"
        if dtype == "uint64" or not (is_integral or dtype == "bfloat16" or np.can_cast(dtype, np.float64)):
            raise TypeError(f"a state of dtype {dtype} cannot be compared exactly: use floats, integers or bool")
        self._shard = shard
        self._choose: Any = np.maximum if reduction == "max" else np.minimum  # both return NaN if one is NaN
        kind: type[Any] = np.int64 if is_integral else np.float64
        limits = (np.iinfo(np.int64).min, np.iinfo(np.int64).max) if is_integral else (-math.inf, math.inf)
        self._nothing: NDArray[Any] = np.full(shape, limits[reduction == "min"], kind)
        self._values = self._nothing
        self._saw = False

    @property
    def rows(self) -> int:
        """Number of rows: one for each rank."""
        return self._shard.world_size

    @property
    def width(self) -> int:
        """Number of columns: one for each element, and one that says whether the rank saw values."""
        return self._values.size + 1

    def add(self, values: ArrayLike) -> None:
        """Compare with an array of this shape. Raises `ValueError` for another shape, `TypeError` for another kind."""
        array = np.asarray(values)
        if array.shape != self.shape:
            raise ValueError(f"an array of shape {array.shape} was compared with a state of shape {self.shape}")
        if (array.dtype.kind in "biu") != (self._values.dtype == np.int64) or not np.can_cast(
            array.dtype, self._values.dtype
        ):
            raise TypeError(f"values of dtype {array.dtype} cannot be compared exactly with {self.dtype}")
        self._values = np.asarray(self._choose(self._values, array.astype(self._values.dtype)))
        self._saw = True

    def add_all(self, values: ArrayLike) -> None:
        """Compare with one or more arrays at once, (times, …). Raises as `add` does."""
        self.add(self._choose.reduce(np.asarray(values), axis=0))

    def merge(self, other: Self) -> None:
        """Compare with the values of another state. Raises `ValueError` unless it is of the same kind."""
        if (self.shape, self.dtype, self.reduction) != (other.shape, other.dtype, other.reduction):
            raise ValueError(f"{other.reduction} {other.shape} cannot be merged into {self.reduction} {self.shape}")
        self._values = np.asarray(self._choose(self._values, other._values))
        self._saw |= other._saw

    def values(self) -> NDArray[Any]:
        """Return the largest or smallest values: float64 or int64 of this shape."""
        copy: NDArray[Any] = self._values.copy()
        return copy

    def used(self) -> NDArray[np.bool_]:
        """Return a bool for each row: only this rank's row is used, and only if values were added."""
        return np.array([self._saw and rank == self._shard.rank for rank in range(self.rows)])

    def pack(self, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the chosen rows as `State.pack` does: the values of this rank in its own row, zeros elsewhere."""
        chosen = chosen_rows(self, rows)
        packed = np.zeros((len(chosen), self.width), np.int64)
        if self._saw and self._shard.rank in chosen:
            row = packed[chosen.index(self._shard.rank)]
            row[0] = _SAW
            row[1:] = self._values.view(np.int64).reshape(-1)
        return packed.reshape(-1)

    def unpack(self, packed: NDArray[np.int64], rows: NDArray[np.bool_] | None = None) -> None:
        """Take the largest or smallest values of all ranks from a sum of packs, as `State.unpack` does."""
        matrix = matrix_of(self, packed, len(chosen_rows(self, rows)))
        if not np.isin(matrix[:, 0], (0, _SAW)).all():
            raise ValueError("a rank's row was added more than once: the pack is damaged")
        present = matrix[matrix[:, 0] == _SAW, 1:]
        self._saw = bool(len(present))
        self._values = self._nothing
        for row in present:
            values = np.ascontiguousarray(row).view(self._nothing.dtype).reshape(self.shape)
            self._values = np.asarray(self._choose(self._values, values))

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON: the bits of every value, or null if no value was added."""
        bits = self._values.view(np.int64).reshape(-1).tolist() if self._saw else None
        return {"reduction": self.reduction, "shape": list(self.shape), "dtype": self.dtype, "bits": bits}

    @classmethod
    def from_json(cls, parsed: dict[str, Any]) -> Self:
        """Build the state of a single rank from the output of `to_json`. Raises `RecordError` for anything else."""
        try:
            reduction: Reduction = {"max": "max", "min": "min"}[parsed["reduction"]]  # type: ignore[assignment]
            state = cls(tuple(parsed["shape"]), parsed["dtype"], reduction, Shard(0, 1))
            if parsed["bits"] is not None:
                bits = np.array(parsed["bits"]).astype(np.int64, casting="safe").reshape(-1)
                state.unpack(np.concatenate([np.array([_SAW]), bits]))
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise RecordError(f"not the saved state of a metric: {error!r}") from error
        return state
