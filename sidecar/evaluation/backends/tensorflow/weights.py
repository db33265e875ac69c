"""Restore a model's variables, and write them as a TensorFlow checkpoint while the model is evaluated.

`tf.train.Checkpoint.write` walks the object graph in Python each time, while the evaluation waits for the interpreter.
The graph does not change, so it is walked once. Later writes store its serialized form and the variables under the
same keys, in one operation that needs no Python.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.completeness import NONE, Exceptions, Restored
from sidecar.evaluation.backends.tensorflow.provisional_vocabulary import ProvisionalVocabularies
from sidecar.evaluation.backends.tensorflow.restore import GRAPH_KEY, keys_of, restore, variables_of

NAME: Final = "weights"
"""Name of the checkpoint in the folder of a worker."""


class Weights:
    """Restore the weights of one built model, and write them, quickly from the second time on."""

    def __init__(self, model: Any, exceptions: Exceptions = NONE) -> None:
        self._model, self._exceptions = model, exceptions
        self.vocabularies = ProvisionalVocabularies(model)
        self._built: list[tuple[Any, Any]] | None = None  # variables that may keep the values of `build_model`
        self._graph: bytes | None = None  # serialized
        self._keys: list[str] | None = None  # of `variables_of(model)`; None unless the checkpoint holds nothing else

    def restore(self, path: str, make_root: Callable[[Any], Any] | None) -> Restored:
        """Assign a checkpoint's values; those that it may lack begin with the values that `build_model` gave them."""
        if self._built is None:
            kept = filter(self._exceptions.keeps, variables_of(self._model))
            self._built = [(variable, np.array(variable)) for variable in kept]
        for variable, value in self._built:  # the previous checkpoint may have held them
            variable.assign(value)
        return restore(self._model, path, make_root, self._exceptions)

    def write(self, folder: Path) -> None:
        """Write a checkpoint for `tf.train.Checkpoint(model=model).restore(folder / "weights")`; raise `OSError`."""
        prefix = str(folder / NAME)
        with as_os_error():
            if self._keys is None:
                tf.train.Checkpoint(model=self._model).write(prefix)
                self._learn(prefix)
            else:
                self._write_again(prefix, self._keys)

    def _learn(self, prefix: str) -> None:
        """Remember the keys, unless the checkpoint also holds lookup tables, which SaveV2 would not write."""
        reader = tf.train.load_checkpoint(prefix)
        keys = keys_of(self._model, prefix)
        if keys is not None and set(reader.get_variable_to_shape_map()) == {GRAPH_KEY, *keys}:
            self._graph, self._keys = reader.get_tensor(GRAPH_KEY), keys

    def _write_again(self, prefix: str, keys: list[str]) -> None:
        values = [tf.convert_to_tensor(variable) for variable in variables_of(self._model)]
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=[*keys, GRAPH_KEY],
            shape_and_slices=[""] * (len(keys) + 1),
            tensors=[*values, tf.constant(self._graph)],
        )


@contextmanager
def as_os_error() -> Iterator[None]:
    """Convert the errors that TensorFlow raises when it cannot write into an `OSError`."""
    try:
        yield
    except tf.errors.OpError as error:  # a full disk is ResourceExhaustedError, which sounds like memory
        is_full = os.strerror(errno.ENOSPC) in str(error.message)
        raise OSError(errno.ENOSPC if is_full else errno.EIO, error.message) from error
