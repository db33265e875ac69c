"""Sum numbers whose names and shapes only the first batch tells. Imports numpy, never a framework.

The sums of a rank are exact, and small. Each rank sends them as a text, and all ranks add up the sums of all texts.
"""

import json
from collections.abc import Mapping
from copy import copy
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import RecordError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states.exact_sum import ExactSum
from sidecar.evaluation.states.gathered_batches import GatheredBatches

MAX_ELEMENTS: Final = 1 << 16
"""Limit of the numbers of all sums together: sums that a text holds have to be few."""


class NamedSums:
    """Keep exact sums by name: in int64 for integers and bool, in float64 for floats."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._sums: dict[str, ExactSum] = {}

    @property
    def rows(self) -> int:
        """Number of rows, which tell the size of the texts of all ranks."""
        return GatheredBatches(self._shard).rows

    @property
    def width(self) -> int:
        """Number of columns. The pack is longer: it has the texts of all ranks."""
        return 1

    def add(self, deltas: Mapping[str, NDArray[Any]]) -> None:
        """Add to each sum. The first time makes the sums.

        Raises `ValueError` for other names or shapes than the first time, or too many numbers; `TypeError` for anything
        but real numbers.
        """
        if not self._sums:
            if (size := sum(array.size for array in deltas.values())) > MAX_ELEMENTS:
                raise ValueError(f"{size} numbers are too many for sums by name, at most {MAX_ELEMENTS} are added up")
            self._sums = {name: ExactSum(array.shape, _dtype(array)) for name, array in deltas.items()}
        if deltas.keys() != self._sums.keys():
            raise ValueError(
                f"the sums are {', '.join(self._sums)}, but {', '.join(deltas)} were added: give all of them for every "
                f"batch, with 0 for what it does not have"
            )
        for name, array in deltas.items():
            self._sums[name].add(array)

    def merge(self, other: Self) -> None:
        """Add the sums of another state. Raises `ValueError` if names or shapes differ, unless one state is new."""
        if not self._sums or not other._sums:
            self._sums = self._sums or other._sums
            return
        if self._sums.keys() != other._sums.keys():
            raise ValueError(f"sums {', '.join(other._sums)} cannot be merged into {', '.join(self._sums)}")
        for name, state in other._sums.items():
            try:
                self._sums[name].merge(state)
            except OverflowError as error:
                raise OverflowError(
                    f"{name!r}: {error}: let the function of Sums return it as a float, such as float(total)"
                ) from None

    def totals(self) -> dict[str, NDArray[Any]]:
        """Return the sums by name, as int64 or float64 of their shapes."""
        return {name: state.integers() if state.is_integral else state.round() for name, state in self._sums.items()}

    def without(self, name: str) -> Self:
        """Return a state that lacks the sum of this name, and shares the others."""
        lacking = copy(self)
        lacking._sums = {other: one for other, one in self._sums.items() if other != name}  # noqa: SLF001 - of this class
        return lacking

    def used(self) -> NDArray[np.bool_]:
        """Return a bool for each row, as `GatheredBatches.used` does."""
        return self._text().used()

    def pack(self, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return a vector for the texts of all ranks, as `GatheredBatches.pack` does."""
        return self._text().pack(rows)

    def unpack(self, packed: NDArray[np.int64], rows: NDArray[np.bool_] | None = None) -> None:
        """Replace the sums by those of a pack, or of the sum of all ranks' packs."""
        texts = GatheredBatches(self._shard)
        texts.unpack(packed, rows)
        self._sums = {}
        for text in texts.contents():
            self.merge(type(self).from_json(json.loads(text.tobytes())))

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON: the sums by name."""
        return {"reduction": "named", "sums": {name: state.to_json() for name, state in self._sums.items()}}

    @classmethod
    def from_json(cls, parsed: dict[str, Any]) -> Self:
        """Build the state of a single rank from the output of `to_json`. Raises `RecordError` for anything else."""
        state = cls(Shard(0, 1))
        try:
            state._sums = {str(name): ExactSum.from_json(one) for name, one in parsed["sums"].items()}
        except (AttributeError, KeyError, TypeError) as error:
            raise RecordError(f"not the saved state of a metric: {error!r}") from error
        return state

    def _text(self) -> GatheredBatches:
        text = GatheredBatches(self._shard)
        if self._sums:
            text.put(self._shard.rank, np.frombuffer(json.dumps(self.to_json()).encode(), np.uint8))
        return text


def _dtype(array: NDArray[Any]) -> str:
    return "int64" if array.dtype.kind in "biu" else "float64" if array.dtype.kind == "f" else array.dtype.name
