"""Define what the exact stream asks of code that opens a task's data: batches in order, and their content.

A batch is whatever the framework computes with, such as a nested structure of tensors. Only its source can say how many
examples it holds and which arrays it consists of.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sidecar.records import Sharding

Batch = Any
"""A nested structure whose arrays or tensors have the examples as their first dimension."""


class BatchSource(Protocol):
    """The data of one eval set on one rank. Every method that reads calls the task's source anew."""

    @property
    def sharding(self) -> Sharding:
        """How the data are divided among the ranks."""
        ...

    def sample(self) -> Batch | None:
        """Return the first batch, before `prepare`; None if there is none."""
        ...

    def numbered(self) -> Iterator[tuple[int, Batch]]:
        """Yield every batch of the eval set with its number, before `prepare`; only a set divided `own` yields less."""
        ...

    def own(self) -> Iterator[Batch]:
        """Yield this rank's own batches in order, after `prepare`."""
        ...

    def leave_to_first(self) -> None:
        """Let rank 0 own all batches from now on, and the other ranks none."""
        ...

    def fingerprint_of_files(self) -> str:
        """Return the digest of the list of files as it is now; called only if the data are divided by `files`."""
        ...

    def arrays(self, batch: Batch) -> Iterable[NDArray[Any]]:
        """Yield everything that a batch holds, always in the same order."""
        ...

    def examples_in(self, batch: Batch) -> int:
        """Return the number of examples in a batch."""
        ...

    def finite_rows(self, part: Any) -> list[NDArray[np.bool_]]:
        """Return which rows of each array are finite, of a part of a batch; nothing if all of them are."""
        ...
