"""Sum numbers whose names and shapes only the first batch tells. Imports numpy, never a framework."""

from collections.abc import Mapping
from copy import copy
from typing import Any, Final, Self

from numpy.typing import NDArray

from sidecar.errors import RecordError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states.exact_sum import ExactSum
from sidecar.evaluation.states.gathered_batches import GatheredText

MAX_ELEMENTS: Final = 1 << 16
"""Limit of the numbers of all sums together: sums that a text holds have to be few."""


class NamedSums(GatheredText[ExactSum]):
    """Keep exact sums by name: in int64 for integers and bool, in float64 for floats."""

    def add(self, deltas: Mapping[str, NDArray[Any]]) -> None:
        """Add to each sum. The first time makes the sums.

        Raises `ValueError` for other names or shapes than the first time, or too many numbers; `TypeError` for anything
        but real numbers.
        """
        if not self._kept:
            if (size := sum(array.size for array in deltas.values())) > MAX_ELEMENTS:
                raise ValueError(f"{size} numbers are too many for sums by name, at most {MAX_ELEMENTS} are added up")
            self._kept = {name: ExactSum(array.shape, _dtype(array)) for name, array in deltas.items()}
        if deltas.keys() != self._kept.keys():
            raise ValueError(
                f"the sums are {', '.join(self._kept)}, but {', '.join(deltas)} were added: give all of them for every "
                f"batch, with 0 for what it does not have"
            )
        for name, array in deltas.items():
            self._kept[name].add(array)

    def merge(self, other: Self) -> None:
        """Add the sums of another state. Raises `ValueError` if names or shapes differ, unless one state is new."""
        if not self._kept or not other._kept:
            self._kept = self._kept or other._kept
            return
        if self._kept.keys() != other._kept.keys():
            raise ValueError(f"sums {', '.join(other._kept)} cannot be merged into {', '.join(self._kept)}")
        for name, state in other._kept.items():
            try:
                self._kept[name].merge(state)
            except OverflowError as error:
                raise OverflowError(
                    f"{name!r}: {error}: let the function of Sums return it as a float, such as float(total)"
                ) from None

    def totals(self) -> dict[str, NDArray[Any]]:
        """Return the sums by name, as int64 or float64 of their shapes."""
        return {name: state.integers() if state.is_integral else state.round() for name, state in self._kept.items()}

    def without(self, name: str) -> Self:
        """Return a state that lacks the sum of this name, and shares the others."""
        lacking = copy(self)
        lacking._kept = {other: one for other, one in self._kept.items() if other != name}  # noqa: SLF001 - of this class
        return lacking

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON: the sums by name."""
        return {"reduction": "named", "sums": {name: state.to_json() for name, state in self._kept.items()}}

    @classmethod
    def from_json(cls, parsed: dict[str, Any]) -> Self:
        """Build the state of a single rank from the output of `to_json`. Raises `RecordError` for anything else."""
        state = cls(Shard(0, 1))
        try:
            state._kept = {str(name): ExactSum.from_json(one) for name, one in parsed["sums"].items()}
        except (AttributeError, KeyError, TypeError) as error:
            raise RecordError(f"not the saved state of a metric: {error!r}") from error
        return state


def _dtype(array: NDArray[Any]) -> str:
    return "int64" if array.dtype.kind in "biu" else "float64" if array.dtype.kind == "f" else array.dtype.name
