"""Gather the outputs of several batches before they are added to the states.

Sums are exact, so the order of additions does not matter. Adding many outputs at once costs little more than adding
one.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from numpy.typing import NDArray

_BATCHES: Final = 64  # more batches would not save more time
_BYTES: Final = 1 << 20  # larger outputs, such as images, are added batch by batch: copies would cost more


Add = Callable[[list[list[NDArray[Any]]], Sequence[int | None]], None]
"""A function that takes several batches: for each output a list of one array per batch, and the numbers of the first
examples of the batches."""


class BatchBuffer:
    """Gather the outputs of batches, and pass several at once to `add`."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._batches: list[list[NDArray[Any]]] = []
        self._firsts: list[int | None] = []
        self._bytes = 0

    def add(self, outputs: list[NDArray[Any]], first: int | None) -> None:
        """Gather the outputs of one batch; pass all outputs on if the buffer is full."""
        self._batches.append(outputs)
        self._firsts.append(first)
        self._bytes += sum(array.nbytes for array in outputs)
        if len(self._firsts) == _BATCHES or self._bytes >= _BYTES:
            self.flush()

    def flush(self) -> None:
        """Pass on the gathered outputs."""
        if not self._firsts:
            return
        by_output = [list(arrays) for arrays in zip(*self._batches, strict=True)]
        firsts = self._firsts
        self._batches, self._firsts, self._bytes = [], [], 0
        self._add(by_output, firsts)
