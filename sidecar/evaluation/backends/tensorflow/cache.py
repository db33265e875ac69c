"""Prepared batches that stay in memory between checkpoints, within a budget of bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

Batch = Any
"""A nested structure of tensors whose first dimension counts examples."""


@dataclass(slots=True)
class CacheBudget:
    """Bytes of prepared batches that may still be kept in memory, over all eval sets of a worker."""

    left: int


class Cache:
    """All own batches of one eval set, or none: what does not fit as a whole is not kept at all."""

    def __init__(self, budget: CacheBudget) -> None:
        self._budget = budget
        self._batches: list[Batch] = []
        self._bytes = 0
        self._fits = True
        self.complete = False

    def offer(self, batch: Batch) -> None:
        """Keep the batch while all so far fit into the budget."""
        if not self._fits:
            return
        size = sum(_bytes_of(tensor) for tensor in tf.nest.flatten(batch, expand_composites=True))
        if size > self._budget.left:
            self.clear()
            self._fits = False
            return
        self._budget.left -= size
        self._bytes += size
        self._batches.append(batch)

    def finish(self) -> None:
        """The batches offered are all that there are."""
        self.complete = self._fits

    def clear(self) -> None:
        """Give everything back."""
        self._budget.left += self._bytes
        self._batches, self._bytes = [], 0

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


def _bytes_of(tensor: Any) -> int:
    array = tensor.numpy()
    if array.dtype.hasobject:
        return sum(len(text) for text in array.ravel().tolist())
    return int(array.nbytes)
