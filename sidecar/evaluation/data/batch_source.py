"""Define the interface of a source of batches, which opens the data of a task for an exact stream.

A batch is the input of one step of the framework, such as a nested structure of tensors. Only its source can say how
many examples and which arrays it holds.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sidecar.protocol.records import Sharding

Division = Sharding | Literal["index"]
"""The way in which data are divided. `index` divides by batches, of which each rank reads its own only."""

Batch = Any
"""A nested structure of arrays or tensors; their first dimension counts the examples."""


class BatchSource(Protocol):
    """The data of one eval set on one rank. Every method that reads data calls the task's source again."""

    @property
    def sharding(self) -> Division:
        """The way in which the data are divided among the ranks."""

    def sample(self) -> Batch | None:
        """Return the first batch, before `prepare`; None if there are no batches."""

    def numbered(self) -> Iterator[tuple[int, Batch]]:
        """Yield every batch with its number, before `prepare`; a set divided by `own` yields only a part."""

    def own(self) -> Iterator[Batch]:
        """Yield the batches of this rank in order, after `prepare`."""

    def leave_to_first(self) -> None:
        """Give all batches to rank 0 from now on, and none to other ranks."""

    def fingerprint_of_files(self) -> str:
        """Return the digest of the present list of files. Call it only if the data are divided by `files`."""

    def parts(self, batch: Batch) -> Iterable[tuple[str, Any]]:
        """Yield each part of a batch with its place, one of `nonfinite.PLACES`."""

    def arrays(self, batch: Batch) -> Iterable[NDArray[Any]]:
        """Yield all arrays of a batch, always in the same order."""

    def examples_in(self, batch: Batch) -> int:
        """Return the number of examples in a batch."""

    def finite_rows(self, part: Any) -> list[NDArray[np.bool_]]:
        """Return which rows of each array in a part of a batch are finite; an empty list if all are."""


class ListedSource(BatchSource, Protocol):
    """The data of one eval set whose batches are known without reading them: `sharding` is `index`."""

    def sizes(self) -> Sequence[int]:
        """Return the number of examples in each batch."""

    def fingerprint_of_list(self) -> str:
        """Return the digest of the list of batches, which names the examples of each."""

    def chosen(self, numbers: Sequence[int]) -> Iterator[Batch]:
        """Yield the batches with these numbers, before `prepare`."""
