"""Probe metrics on a first batch and its two parts, to show whether their states can be merged."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.data import rows_of
from sidecar.evaluation.row_comparison import halves_of

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
    """Update all metrics on a whole batch, and on its parts, and return a `MergeabilityProbe` for each metric.

    `batch`: a nested structure of tensors, as for `divided`. `read` returns the list of states of each metric.
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
    batch: Any,  # a nested structure of tensors
    reset: Callable[[], None],  # resets all metrics
    update: Callable[[Any], None],  # updates all metrics with a batch
    read: Callable[[], Any],  # returns the list of states of each metric
    rewind: Callable[[], None],  # resets the recurrent states of the model
) -> Iterable[Any]:
    """Update all metrics on a batch twice, for models that accept only whole batches; otherwise as `probe`.

    This shows whether states add up, but it cannot find a mean over batches. In the `MergeabilityProbe`s returned,
    `whole` equals `in_turn`: the states after both batches.
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


def have_same_rows(batch: Any) -> bool:
    """Return whether all tensors of a batch have as many rows, so that its parts are parts of all of them."""
    tensors = [tensor for tensor in tf.nest.flatten(batch) if tf.is_tensor(tensor) and tensor.shape.rank]
    return len({int(rows_of(tensor)) for tensor in tensors}) <= 1


def divided(batch: Any) -> tuple[Any, Any, Any]:
    """Return a batch and its two parts; if it has a single example, return it twice as the batch, and as both parts.

    `batch`: a nested structure of tensors (n, …), which may be ragged or sparse, or `None`. The masks that Keras
    attaches to tensors are dropped.
    """
    tensors = map_tensors(tf.identity, batch)
    examples = next(int(tensor.shape[0]) for tensor in tf.nest.flatten(tensors) if tensor is not None)
    if examples == 1:
        return map_tensors(_twice, tensors), tensors, tensors
    halves = halves_of(examples)
    assert halves is not None, "there are several examples"
    parts = [partial(part_of, place.start, place.stop - place.start) for place in halves]
    return tensors, map_tensors(parts[0], tensors), map_tensors(parts[1], tensors)


def _twice(tensor: Any) -> Any:
    if isinstance(tensor, tf.SparseTensor):
        return tf.sparse.concat(0, [tensor, tensor])
    return tf.concat([tensor, tensor], 0)


def part_of(start: int, size: int, tensor: Any) -> Any:
    """Return some rows of a dense, ragged or sparse tensor."""
    if isinstance(tensor, tf.SparseTensor):  # a sparse tensor does not support slices
        inner = tensor.dense_shape[1:]
        return tf.sparse.slice(tensor, tf.concat([[start], tf.zeros_like(inner)], 0), tf.concat([[size], inner], 0))
    return tensor[start : start + size]


def map_tensors(function: Any, batch: Any) -> Any:
    """Return a batch with each of its tensors replaced by what the function returns for it."""
    return tf.nest.map_structure(lambda tensor: None if tensor is None else function(tensor), batch)


def without_padding(batch: Any, spec: Any) -> Any:
    """Return a batch as `padded_batch` would have padded it alone, or `None` if that would make no difference.

    Tensors (n, T, …) are cut to the longest example. The ends of examples are padding if all of them hold the same
    value more than once.

    `batch`: a part of a batch: a nested structure of tensors. `spec`: the structure of batches, as nested
    `tf.TypeSpec`s. Only axis 1 may have an unknown size.
    """
    tensors, specs = tf.nest.flatten(batch), tf.nest.flatten(spec)
    lengths: dict[int, int] = {}  # from the size of the axis in the batch to the longest example
    for tensor, tensor_spec in zip(tensors, specs, strict=True):
        if _is_padded(tensor, tensor_spec):
            size = int(tensor.shape[1])
            lengths[size] = max(lengths.get(size, 1), _longest(np.asarray(tensor)))
    if all(size == longest for size, longest in lengths.items()):
        return None
    cut = [
        tensor[:, : lengths[int(tensor.shape[1])]] if _is_padded(tensor, tensor_spec) else tensor
        for tensor, tensor_spec in zip(tensors, specs, strict=True)
    ]
    return tf.nest.pack_sequence_as(batch, cut)


def _is_padded(tensor: Any, spec: Any) -> bool:
    if not isinstance(tensor, tf.Tensor) or not isinstance(spec, tf.TensorSpec):
        return False
    return tuple(spec.shape).count(None) == 2 and spec.shape[1] is None  # noqa: PLR2004 - examples and their positions


def _longest(array: Any) -> int:
    """Return the size of axis 1 without the padding at its end, which all examples share."""
    examples, size, *_ = array.shape
    values = array.reshape(examples, size, -1)
    padding = (values == values[:1, -1:, :1]).all(axis=2)  # if anything is padding, the very last value is
    padded = np.cumprod(padding[:, ::-1], axis=1).sum(axis=1).min(initial=size)
    return max(1, size - int(padded)) if padded > 1 else int(size)  # one value may be a sign for the end
