"""Number the groups of examples that `EvalSet(groups=…)` names, the same way on each rank. Imports numpy only."""

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError


def group_numbers(eval_set: str, groups: Any, examples: int | None, *, is_whole: bool = True) -> NDArray[np.int64]:
    """Return the number of the group of each example (n,), from 0, in the order in which the groups appear.

    Args:
        eval_set: Name of the eval set, for messages.
        groups: One key for each example, or a function without arguments that returns them.
        examples: Number of examples; None if it is unknown.
        is_whole: Whether these are all examples of the set, and not only its first ones.

    Raises:
        TaskError: There is not one key for each example, or a key cannot be compared.
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
