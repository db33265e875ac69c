"""Find the rows of tensors that hold only finite numbers."""

from typing import Any, Final

import numpy as np
import tensorflow as tf

_FLOATS: Final = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
"""Types that can hold NaN or infinity; values of other types need no check."""


def finite_rows(structure: Any) -> list[Any]:
    """Return a bool (n,) for each tensor of floats (n, …) in a nested structure, inside or outside a trace."""
    tensors = [leaf for leaf in tf.nest.flatten(structure) if getattr(leaf, "dtype", None) in _FLOATS]
    return [_rows(tensor) for tensor in tensors if tensor.shape.rank != 0]


def is_finite(tensor: Any) -> bool:
    """Return whether an eager tensor holds only finite numbers; True for a tensor that holds no floats."""
    return tensor.dtype not in _FLOATS or bool(np.isfinite(np.asarray(tensor)).all())


def _rows(tensor: Any) -> Any:
    if isinstance(tensor, tf.RaggedTensor):
        inner = tensor.with_flat_values(_rows(tensor.flat_values))
        return tf.reduce_all(inner, axis=list(range(1, tensor.ragged_rank + 1)))
    if isinstance(tensor, tf.SparseTensor):
        finite = tf.cast(tf.math.is_finite(tensor.values), tf.int32)
        return tf.math.unsorted_segment_min(finite, tensor.indices[:, 0], tensor.dense_shape[0]) > 0
    finite = tf.math.is_finite(tensor)
    return tf.reduce_all(finite, axis=tf.range(1, tf.rank(finite)))
