"""Outputs of the last few batches, on their way into the states.

Sums are exact, so it does not matter when a number enters them; adding many at once costs little more than adding one.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from numpy.typing import NDArray

_BATCHES: Final = 64  # beyond that nothing is saved any more
_BYTES: Final = 1 << 20  # predictions of large images are added batch by batch: copies of them would cost more


class BatchBuffer:
    """Gathers what a step returned.

    Args:
        add: Takes several batches: of each output a list, an array for each batch; and the places of their first
            examples.
    """

    def __init__(self, add: Callable[[list[list[NDArray[Any]]], Sequence[int | None]], None]) -> None:
        self._add = add
        self._batches: list[list[NDArray[Any]]] = []
        self._firsts: list[int | None] = []
        self._bytes = 0

    def add(self, outputs: list[NDArray[Any]], first: int | None) -> None:
        """Take one batch's outputs."""
        self._batches.append(outputs)
        self._firsts.append(first)
        self._bytes += sum(array.nbytes for array in outputs)
        if len(self._firsts) == _BATCHES or self._bytes >= _BYTES:
            self.flush()

    def flush(self) -> None:
        """Add what was gathered."""
        if not self._firsts:
            return
        by_output = [list(arrays) for arrays in zip(*self._batches, strict=True)]
        firsts = self._firsts
        self._batches, self._firsts, self._bytes = [], [], 0
        self._add(by_output, firsts)
