"""Turn the data of `SidecarEvaluator` into a source that gives the same batches for every checkpoint.

The data is what `model.evaluate` takes as `x`: a `tf.data.Dataset`, a Keras `PyDataset`, or a generator of batches. A
generator can be read only once, so its batches stay in memory. Arrays (x, y) are accepted, too.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.errors import TaskError
from sidecar.evaluation.backends.tensorflow.generator_source import in_order, is_sequence, without_lists

MOST_GENERATED_BYTES: Final = 4 * 1024**3
"""The most bytes of a generator's batches that are held in memory, so that an endless generator is reported."""

_ACCEPTED: Final = "a tf.data.Dataset, a keras.utils.PyDataset, a generator of batches, or arrays (x, y)"


def repeatable(
    data: Any, *, steps: int | None, batch_size: int, most_bytes: int = MOST_GENERATED_BYTES
) -> Callable[[], Any]:
    """Return a function that opens the data anew. The first opening reads all batches of a generator.

    `steps`: number of batches to evaluate; None: all. `batch_size`: that of arrays; other data is already batched.
    Raises `TaskError` if the data is of another type, has no end, or is a generator without a batch or with more than
    `most_bytes`.
    """
    if isinstance(data, np.ndarray) or tf.is_tensor(data):
        raise TaskError("data=… holds inputs without labels, so no metric can be computed: give (x, y)")
    if isinstance(data, tuple | list) and all(hasattr(part, "shape") for part in data):
        data = tf.data.Dataset.from_tensor_slices(tuple(data)).batch(batch_size)
    if isinstance(data, tf.data.Dataset):
        return _dataset(data, steps)
    if is_sequence(data):
        return (lambda: _as_generator(islice(in_order(data), steps))) if steps is not None else (lambda: data)
    if isinstance(data, Iterator):
        return _Generated(data, steps, most_bytes).batches
    raise TaskError(f"data=… must be {_ACCEPTED}, found {type(data).__name__}")


def _dataset(dataset: Any, steps: int | None) -> Callable[[], Any]:
    if steps is not None:
        return lambda: dataset.take(steps)
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise TaskError("data=… repeats for ever: give steps=…, the number of batches of an evaluation")
    return lambda: dataset


def _as_generator(batches: Iterable[Any]) -> Iterator[Any]:
    """Return batches as a generator: `model.evaluate` takes no other iterator."""
    return (batch for batch in batches)


class _Generated:
    """Hold the batches of a generator, read once."""

    def __init__(self, generator: Iterator[Any], steps: int | None, most_bytes: int) -> None:
        self._generator, self._steps, self._most_bytes = generator, steps, most_bytes
        self._batches: list[Any] | None = None

    def batches(self) -> Iterator[Any]:
        """Return a new iterator over all batches. Raises `TaskError` if there are none, or too many bytes."""
        if self._batches is None:
            self._batches = list(self._read())
            if not self._batches:
                raise TaskError("data=… is a generator without a batch: give a new one, since it can be read only once")
        return _as_generator(self._batches)

    def _read(self) -> Iterator[Any]:
        size = 0
        for batch in islice(self._generator, self._steps):
            size += sum(np.asarray(part).nbytes for part in tf.nest.flatten(batch))
            if size > self._most_bytes:
                raise TaskError(
                    f"data=… is a generator of more than {self._most_bytes} bytes, which would have to stay in memory "
                    f"for the next checkpoint: give a tf.data.Dataset or a keras.utils.PyDataset, or steps=…"
                )
            yield without_lists(batch)
