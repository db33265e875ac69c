"""Carry the states of recurrent layers with `stateful=True` from one batch to the next.

An evaluation begins with the states of the checkpoint or, if it holds none, of a new model. It goes through all batches
in order, so the batches cannot be divided among workers. A batch that is evaluated again begins with the same states as
the first time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.libraries import class_named, is_keras_2, layers_of


class RecurrentStates:
    """Read and set the states of all such layers of a model, at any depth. Most models have no such layers.

    `model`: a model that was called once, so that its layers have their states.
    """

    def __init__(self, model: Any) -> None:
        self._layers = [layer for layer in layers_of(model) if _variables(layer)]
        self.variables = [variable for layer in self._layers for variable in _variables(layer)]
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def batch_size(self) -> int:
        """Return the number of examples that each batch must have."""
        return int(self.variables[0].shape[0])

    def __str__(self) -> str:
        return f"layers with stateful=True ({', '.join(repr(layer.name) for layer in self._layers)})"

    @contextmanager
    def preserved(self) -> Iterator[list[Any]]:
        """Yield the values of the states, and restore them at the end. If there are states, threads take turns."""
        if not self:
            yield []
            return
        with self._lock:
            values = self.values()
            try:
                yield values
            finally:
                self.assign(values)

    def notes(self) -> tuple[str, ...]:
        """Return a note about such layers for readers of the result; empty if there are none."""
        order = "continue from the previous batch, so worker 0 evaluates all batches in order, and other workers none"
        if not self:
            return ()
        note = f"the model's {self} {order}; another batch size or order gives other numbers"
        left = "they begin with the states that training left in the checkpoint; a reset begins with others"
        return (note,) if self._are_new() else (note, left)

    def _are_new(self) -> bool:
        """Return whether all states are those of a new model."""
        pairs = zip(self.variables, self._new_values(), strict=True)
        return all(np.array_equal(np.asarray(state), np.asarray(value)) for state, value in pairs)

    def _new_values(self) -> list[Any]:
        return [value for layer in self._layers for value in tf.nest.flatten(_initial(layer))]

    def values(self) -> list[Any]:
        """Return the values of the states as tensors. This works inside and outside of a trace."""
        return [tf.convert_to_tensor(variable) for variable in self.variables]

    def assign(self, values: Sequence[Any]) -> None:
        """Set the values of all states. This works inside and outside of a trace."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def reset(self) -> None:
        """Set all states to those of a new model."""
        self.assign(self._new_values())


def _variables(layer: Any) -> list[Any]:
    if class_named(layer, "RNN") is None or not layer.stateful:
        return []
    return [state for state in tf.nest.flatten(layer.states) if state is not None]


def _initial(layer: Any) -> Any:
    """Return the states after `build`. No public method of tf_keras returns them without inputs."""
    states = _variables(layer)
    if not is_keras_2(layer):
        return layer.get_initial_state(states[0].shape[0])
    make = getattr(layer.cell, "get_initial_state", None)
    if make is None:
        return [tf.zeros(state.shape, state.dtype) for state in states]
    return make(inputs=None, batch_size=states[0].shape[0], dtype=layer.variable_dtype)
