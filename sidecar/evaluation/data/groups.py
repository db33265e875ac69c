"""Number the groups of examples that `EvalSet(groups=…)` names, the same way on each rank. Imports numpy only."""

import re
from collections.abc import Hashable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.slice_table import columns_of

_OF_GROUPS: Final = re.compile(
    r"(author|customer|device|doc|document|household|participant|patient|scene|session|site|speaker|subject|user|video)"
    r"s?(_?(id|key|name|no|number))?",
    re.IGNORECASE,
)
"""Names of columns whose rows belong together. The id of a class or of an item would be no group."""

_MOST_KEYS: Final = 1_000_000  # of a column, which stay in memory while the data are read


def group_numbers(eval_set: str, groups: Any, examples: int | None, *, is_whole: bool = True) -> NDArray[np.int64]:
    """Return the number of the group of each example (n,), from 0, in the order in which the groups appear.

    `groups`: one key for each example, or a function without arguments that returns them. `is_whole`: whether these are
    all examples of the set, and not only its first ones. Raises `TaskError` if there is not one key for each example,
    or a key cannot be compared.
    """
    start = f"EvalSet(groups=…) of {eval_set!r}"
    if examples is None:
        raise TaskError(
            f"{start}: the set divides itself or is divided by file, so its examples have no numbers: leave groups "
            f"out, or give a source that all workers read alike"
        )
    numbers: dict[Hashable, int] = {}
    try:
        keys: Iterable[Hashable] = groups() if callable(groups) else groups
        found = [numbers.setdefault(key, len(numbers)) for key in (keys.tolist() if hasattr(keys, "tolist") else keys)]
    except TypeError as error:
        raise TaskError(f"{start} must give one key for each example, such as a text or a number: {error}") from None
    if len(found) != examples and (is_whole or len(found) < examples):
        raise TaskError(f"{start} must give one key for each of {examples} examples, found {len(found)}")
    return np.array(found[:examples], np.int64)


class RepeatedKeys:
    """Find keys that repeat in data without groups, such as those of a column `patient_id`."""

    def __init__(self) -> None:
        self._found: dict[str, set[Any]] = {}

    def look_at(self, batch: Batch) -> None:
        """Remember the keys of a batch."""
        for name, keys in columns_of(batch, _OF_GROUPS.fullmatch):
            found = self._found.setdefault(name, set())
            if len(found) < _MOST_KEYS and all(isinstance(key, str | bytes | int) for key in keys):
                found.update(keys)

    def notes(self, examples: int) -> tuple[str, ...]:
        """Return a note for each column whose keys repeat in so many examples."""
        return tuple(
            f"column {name!r} has {len(keys):,} keys for {examples:,} examples: rows of one key are not independent, "
            f"and intervals would be too short: write EvalSet(…, groups={name!r})"
            for name, keys in self._found.items()
            if 0 < len(keys) < min(examples, _MOST_KEYS)
        )
