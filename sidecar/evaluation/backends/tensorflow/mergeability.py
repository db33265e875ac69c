"""Probe metrics on a first batch and its two parts, to show whether their states can be merged."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import tensorflow as tf

SIZE_ERRORS: Final = (ValueError, tf.errors.InvalidArgumentError)
"""Exceptions raised on a part of a batch by models that accept only whole batches."""


@dataclass(frozen=True, slots=True)
class MergeabilityProbe:
    """The states of one metric after a whole batch, after either part alone, and after both parts in turn."""

    whole: list[Any]
    first: list[Any]
    second: list[Any]
    in_turn: list[Any]


def probe(
    batch: Any, reset: Callable[[], None], update: Callable[[Any], None], read: Callable[[], Any]
) -> Iterable[Any]:
    """Update all metrics on a whole batch, and on its parts.

    Args:
        batch: A nested structure of tensors, as for `divided`.
        reset: Resets all metrics.
        update: Updates all metrics with a batch.
        read: Returns the list of states of each metric.

    Returns:
        A `MergeabilityProbe` for each metric.
    """
    whole, first, second = divided(batch)

    def after(*parts: Any) -> Any:
        reset()
        for part in parts:
            update(part)
        return read()

    by_metric = zip(after(whole), after(first), after(second), after(first, second), strict=True)
    return [MergeabilityProbe(*states) for states in by_metric]


def probe_twice(
    batch: Any,
    reset: Callable[[], None],
    update: Callable[[Any], None],
    read: Callable[[], Any],
    rewind: Callable[[], None],
) -> Iterable[Any]:
    """Update all metrics on a batch twice, for models that accept only whole batches; otherwise as `probe`.

    This shows whether states add up, but it cannot find a mean over batches. In the `MergeabilityProbe`s returned,
    `whole` equals `in_turn`: the states after both batches.

    Args:
        batch: A nested structure of tensors.
        reset: Resets all metrics.
        update: Updates all metrics with a batch.
        read: Returns the list of states of each metric.
        rewind: Resets the recurrent states of the model.
    """
    alone = []
    rewind()
    for _ in range(2):
        reset()
        update(batch)
        alone.append(read())
    rewind()
    reset()
    update(batch)
    update(batch)
    in_turn = read()
    return [MergeabilityProbe(both, one, other, both) for both, one, other in zip(in_turn, *alone, strict=True)]


def divided(batch: Any) -> tuple[Any, Any, Any]:
    """Return a batch and its two parts; if it has a single example, return it twice as the batch, and as both parts.

    Args:
        batch: A nested structure of tensors (n, …), which may be ragged or sparse, or `None`. The masks that Keras
            attaches to tensors are dropped.
    """
    tensors = _map_tensors(tf.identity, batch)
    examples = next(int(tensor.shape[0]) for tensor in tf.nest.flatten(tensors) if tensor is not None)
    if examples == 1:
        return _map_tensors(_twice, tensors), tensors, tensors
    half = examples // 2
    parts = [partial(_part, start, size) for start, size in ((0, half), (half, examples - half))]
    return tensors, _map_tensors(parts[0], tensors), _map_tensors(parts[1], tensors)


def _twice(tensor: Any) -> Any:
    if isinstance(tensor, tf.SparseTensor):
        return tf.sparse.concat(0, [tensor, tensor])
    return tf.concat([tensor, tensor], 0)


def _part(start: int, size: int, tensor: Any) -> Any:
    if isinstance(tensor, tf.SparseTensor):  # a sparse tensor does not support slices
        inner = tensor.dense_shape[1:]
        return tf.sparse.slice(tensor, tf.concat([[start], tf.zeros_like(inner)], 0), tf.concat([[size], inner], 0))
    return tensor[start : start + size]


def _map_tensors(function: Any, batch: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: None if tensor is None else function(tensor), batch)
