"""Cache prepared batches in memory between checkpoints, within a budget of bytes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.digest import as_bytes


@dataclass(slots=True)
class CacheBudget:
    """The bytes that are left for prepared batches, over all eval sets of a worker process."""

    left: int


class Cache:
    """Cache all batches of one eval set that this rank evaluates, or no batches if they do not all fit.

    `budget`: bytes that are left; the caches of all eval sets share them. `arrays`: returns the arrays that a batch
    consists of.
    """

    def __init__(self, budget: CacheBudget, arrays: Callable[[Batch], Iterable[NDArray[Any]]]) -> None:
        self._budget, self._arrays = budget, arrays
        self._batches: list[Batch] = []
        self._bytes = 0
        self._fits = True
        self.complete = False

    def offer(self, batch: Batch) -> None:
        """Add a batch, as long as all batches so far fit into the budget."""
        if not self._fits:
            return
        size = sum(_bytes_of(array) for array in self._arrays(batch))
        if size > self._budget.left:
            self.clear()
            self._fits = False
            return
        self._budget.left -= size
        self._bytes += size
        self._batches.append(batch)

    def finish(self) -> None:
        """Mark the cache as complete if all batches fit; there are no more batches."""
        self.complete = self._fits

    def clear(self) -> None:
        """Drop all batches and return their bytes to the budget."""
        self._budget.left += self._bytes
        self._batches, self._bytes, self.complete = [], 0, False

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


def _bytes_of(array: NDArray[Any]) -> int:
    if array.dtype.hasobject:
        return sum(len(as_bytes(text)) for text in array.ravel().tolist())
    return int(array.nbytes)
