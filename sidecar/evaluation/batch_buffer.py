"""Gather the outputs of the last few batches on their way into the states.

Sums are exact, so it does not matter when a number enters them; adding many at once costs little more than adding one.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from numpy.typing import NDArray

_BATCHES: Final = 64  # beyond that nothing is saved any more
_BYTES: Final = 1 << 20  # predictions of large images are added batch by batch: copies of them would cost more


Add = Callable[[list[list[NDArray[Any]]], Sequence[int | None]], None]
"""Take several batches: of each output a list with an array for each batch, and the places of their first examples."""


class BatchBuffer:
    """Gather the outputs of batches, and pass several at once to `add`."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._batches: list[list[NDArray[Any]]] = []
        self._firsts: list[int | None] = []
        self._bytes = 0

    def add(self, outputs: list[NDArray[Any]], first: int | None) -> None:
        """Take the outputs of one batch."""
        self._batches.append(outputs)
        self._firsts.append(first)
        self._bytes += sum(array.nbytes for array in outputs)
        if len(self._firsts) == _BATCHES or self._bytes >= _BYTES:
            self.flush()

    def flush(self) -> None:
        """Pass on the outputs that were gathered."""
        if not self._firsts:
            return
        by_output = [list(arrays) for arrays in zip(*self._batches, strict=True)]
        firsts = self._firsts
        self._batches, self._firsts, self._bytes = [], [], 0
        self._add(by_output, firsts)
