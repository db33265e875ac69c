"""Handle parts of batches that are lists of examples, such as images of different sizes and their boxes."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch

from sidecar.evaluation.backends.torch.tensors import leaves, rows_in
from sidecar.evaluation.data.elements import placed

LABELS: Final = "labels"
"""Key of the labels in a batch that is a mapping, as in those of Hugging Face."""

Key = str | int

_FEWEST: Final = 2  # parts that a batch needs, so that equal numbers of rows say something


def parts_of(content: Any) -> Iterator[tuple[Key, str, Any]]:
    """Yield the parts of a batch with key and place; of a mapping, `labels` are the labels."""
    if isinstance(content, Mapping):
        for name, part in content.items():
            yield str(name), "label" if name == LABELS else "input", part
    else:
        for index, (place, part) in enumerate(placed(tuple(content) if isinstance(content, list) else content)):
            yield index, place, part


def lists_of_examples(content: Any, examples: int) -> frozenset[Key]:
    """Return the keys of the parts that hold a structure for each example, instead of tensors with rows for all.

    Let it judge one large batch: for three examples, three images with three channels look like three inputs.
    """
    return frozenset(key for key, _, part in parts_of(content) if _is_list_of_examples(part, examples))


def rows_of(content: Any, examples: int) -> int | None:
    """Return the number of rows of a batch made of so many examples, if it holds fewer; None if it holds all of them.

    It is also None if the parts of the batch have different numbers of rows, as those of a graph have.
    """
    possible = [_possible_rows(part) for _, _, part in parts_of(content)]
    if len(possible) < _FEWEST or any(examples in rows for rows in possible):
        return None
    common = set.intersection(*possible)
    return min(common) if len(common) == 1 and min(common) < examples else None


def _possible_rows(part: Any) -> set[int]:
    """Return what may be the number of examples in a part: the length of a list, and that of all its tensors."""
    if isinstance(part, str | bytes):
        return set()
    rows = {len(part)} if isinstance(part, list | tuple) else set()
    tensors = [leaf for leaf in leaves(part) if isinstance(leaf, torch.Tensor | np.ndarray)]
    of_tensors = {rows_in(leaf) for leaf in tensors}
    return rows | of_tensors if len(of_tensors) == 1 else rows


def finite_by_example(part: Any) -> torch.Tensor:
    """Return (n,) for a list of n structures: NaN for each that holds numbers that are not finite, otherwise 0."""
    finite = [
        all(bool(torch.isfinite(leaf).all()) for leaf in leaves(each) if isinstance(leaf, torch.Tensor))
        for each in part
    ]
    return torch.where(torch.tensor(finite, dtype=torch.bool), 0.0, torch.nan)


def _is_list_of_examples(part: Any, examples: int) -> bool:
    if not isinstance(part, list | tuple) or len(part) != examples:
        return False
    return any(rows_in(leaf) != examples for leaf in leaves(part) if isinstance(leaf, torch.Tensor))
