"""Prove on two parts of a first batch that the states of a metric can be added up."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import tensorflow as tf

OF_SIZE: Final = (ValueError, tf.errors.InvalidArgumentError)
"""Raised on a part of a batch by models that take whole ones only."""


@dataclass(frozen=True, slots=True)
class MergeabilityProbe:
    """The states of one metric after a batch, after each of its parts alone, and after one part and then the other."""

    whole: list[Any]
    first: list[Any]
    second: list[Any]
    in_turn: list[Any]


def probe(
    batch: Any, reset: Callable[[], None], update: Callable[[Any], None], read: Callable[[], Any]
) -> Iterable[Any]:
    """Update on a batch as a whole and by parts.

    Args:
        batch: A nested structure of tensors, as `divided` takes it.
        reset: Lets all metrics forget what they saw.
        update: Shows all metrics a batch.
        read: Returns a list of each metric's states.

    Returns:
        A `MergeabilityProbe` for each metric.
    """
    whole, first, second = divided(batch)

    def after(*parts: Any) -> Any:
        reset()
        for part in parts:
            update(part)
        return read()

    found = zip(after(whole), after(first), after(second), after(first, second), strict=True)
    return [MergeabilityProbe(*each) for each in found]


def probe_twice(
    batch: Any,
    reset: Callable[[], None],
    update: Callable[[Any], None],
    read: Callable[[], Any],
    rewind: Callable[[], None],
) -> Iterable[Any]:
    """Update on a batch, and once more, for models that take whole batches only; otherwise as `probe` does.

    That shows what adds up, and no mean over batches. `rewind` lets a model that goes on from the batch before begin
    anew. The whole of a `MergeabilityProbe` is both batches here.
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
    """Return the whole and two parts of it; of a single example, the whole is that example twice.

    Args:
        batch: A nested structure of tensors (n, …), also ragged or sparse ones, None where nothing is; what Keras hung
            on them (masks) is dropped.
    """
    tensors = _each(tf.identity, batch)
    examples = next(int(each.shape[0]) for each in tf.nest.flatten(tensors) if each is not None)
    if examples == 1:
        return _each(_twice, tensors), tensors, tensors
    half = examples // 2
    parts = [partial(_part, start, size) for start, size in ((0, half), (half, examples - half))]
    return tensors, _each(parts[0], tensors), _each(parts[1], tensors)


def _twice(each: Any) -> Any:
    return tf.sparse.concat(0, [each, each]) if isinstance(each, tf.SparseTensor) else tf.concat([each, each], 0)


def _part(start: int, size: int, each: Any) -> Any:
    if isinstance(each, tf.SparseTensor):  # which cannot be sliced as others can
        inner = each.dense_shape[1:]
        return tf.sparse.slice(each, tf.concat([[start], tf.zeros_like(inner)], 0), tf.concat([[size], inner], 0))
    return each[start : start + size]


def _each(function: Any, batch: Any) -> Any:
    return tf.nest.map_structure(lambda each: None if each is None else function(each), batch)
