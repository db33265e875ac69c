"""Handle nested tuples, lists and dicts of arrays, in which tasks return inputs, labels and predictions."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.plain_arrays import plain_array


def as_arrays(structure: Any) -> Any:
    """Return a nested structure of tuples and dicts with a numpy array for every leaf.

    A list becomes one array. None keeps its place in a tuple, but is dropped at the end, so `(x, y, None)` has no
    weights. Everything that numpy can convert is a leaf, such as a column of pandas or an array of JAX. Raises
    `ValueError` for a list whose elements have different shapes, and for masked values.
    """
    if isinstance(structure, Mapping):
        return {name: as_arrays(part) for name, part in structure.items()}
    if isinstance(structure, tuple):
        last = max((place for place, part in enumerate(structure) if part is not None), default=-1)
        return tuple(None if part is None else as_arrays(part) for part in structure[: last + 1])
    return plain_array(structure)


def copied(structure: Any) -> Any:
    """Return a structure with copies of its arrays, because later code may change or reuse the originals."""
    return map_leaves(lambda array: deepcopy(array) if array.dtype.hasobject else np.array(array), structure)


def leaves(structure: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays of a structure; those of a dict in the order of its sorted keys."""
    if isinstance(structure, Mapping):
        for name in sorted(structure, key=str):
            yield from leaves(structure[name])
    elif isinstance(structure, tuple | list):
        for part in structure:
            yield from leaves(part)
    elif structure is not None:
        yield structure


def map_leaves(function: Callable[..., Any], structure: Any, *others: Any) -> Any:
    """Return the structure with a function applied to each array and to the arrays at the same place in others."""
    if isinstance(structure, Mapping):
        return {
            name: map_leaves(function, part, *(other[name] for other in others)) for name, part in structure.items()
        }
    if isinstance(structure, tuple):
        return tuple(map_leaves(function, part, *rest) for part, *rest in zip(structure, *others, strict=True))
    return None if structure is None else function(structure, *others)


def form_of(structure: Any, describe: Callable[[Any], str] | None = None) -> str:
    """Describe types and shapes of the arrays in a structure, such as (float32(8, 8), int64()).

    `describe`: describes other leaves than arrays of numpy, and None.
    """
    if isinstance(structure, Mapping):
        return "{" + ", ".join(f"{name!r}: {form_of(part, describe)}" for name, part in structure.items()) + "}"
    if isinstance(structure, tuple):
        return "(" + ", ".join(form_of(part, describe) for part in structure) + ")"
    return _form_of_array(structure) if describe is None else describe(structure)


def _form_of_array(array: Any) -> str:
    if array is None:
        return "None"
    return f"{'text' if array.dtype.kind in 'US' else array.dtype}{array.shape}"  # texts may differ in length
