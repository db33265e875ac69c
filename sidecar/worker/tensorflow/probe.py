"""A first batch in two parts, on which metrics prove that it does not matter how data are divided."""

from typing import Any

import tensorflow as tf


def divided(batch: Any) -> tuple[Any, Any, Any]:
    """The whole and two parts of it; of a single example, the whole is that example twice.

    Args:
        batch: A nested structure of tensors (n, …), None where nothing is; what Keras hung on them (masks) is dropped.
    """
    tensors = _each(tf.identity, batch)
    examples = next(int(each.shape[0]) for each in tf.nest.flatten(tensors) if each is not None)
    if examples == 1:
        return _each(lambda each: tf.concat([each, each], 0), tensors), tensors, tensors
    half = examples // 2
    return tensors, _each(lambda each: each[:half], tensors), _each(lambda each: each[half:], tensors)


def _each(function: Any, batch: Any) -> Any:
    return tf.nest.map_structure(lambda each: None if each is None else function(each), batch)
