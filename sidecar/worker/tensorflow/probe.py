"""A first batch in two parts, on which metrics prove that it does not matter how data are divided."""

from functools import partial
from typing import Any

import tensorflow as tf


def divided(batch: Any) -> tuple[Any, Any, Any]:
    """The whole and two parts of it; of a single example, the whole is that example twice.

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
