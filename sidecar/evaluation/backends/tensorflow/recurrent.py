"""Carry the states of recurrent layers with `stateful=True` from one batch to the next.

An evaluation begins with what the checkpoint gives, or a new model has, and goes over all batches in turn, so it cannot
be divided. A batch that is evaluated once more begins with the states that it began with before.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.libraries import class_named, is_keras_2, layers_of


class RecurrentStates:
    """The states of all such layers of a model, at any depth; of most models there are none.

    Args:
        model: Called once, so that its layers have their states.
    """

    def __init__(self, model: Any) -> None:
        self._layers = [each for each in layers_of(model) if _variables(each)]
        self.variables = [variable for each in self._layers for variable in _variables(each)]
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def batch_size(self) -> int:
        """Return how many examples each batch must have."""
        return int(self.variables[0].shape[0])

    def __str__(self) -> str:
        return f"layers with stateful=True ({', '.join(repr(each.name) for each in self._layers)})"

    @contextmanager
    def kept(self) -> Iterator[list[Any]]:
        """Yield what they are, and set them to that again in the end; one thread at a time, where there are any."""
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
        """Return the note for people about an evaluation with them; none for none."""
        order = "go on from the batch before, so worker 0 evaluates all batches in turn, and the other workers none"
        return (f"the model's {self} {order}: of another batch size or order, other numbers",) if self else ()

    def values(self) -> list[Any]:
        """Return what they are now, as tensors, within a trace or not."""
        return [tf.convert_to_tensor(variable) for variable in self.variables]

    def assign(self, values: Sequence[Any]) -> None:
        """Set all of them, within a trace or not."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def reset(self) -> None:
        """Set all of them to what they are in a new model."""
        self.assign([value for each in self._layers for value in tf.nest.flatten(_initial(each))])


def _variables(layer: Any) -> list[Any]:
    if class_named(layer, "RNN") is None or not layer.stateful:
        return []
    return [each for each in tf.nest.flatten(layer.states) if each is not None]


def _initial(layer: Any) -> Any:
    """Return what `build` makes of the states; no public method of tf_keras does that without inputs."""
    states = _variables(layer)
    if not is_keras_2(layer):
        return layer.get_initial_state(states[0].shape[0])
    make = getattr(layer.cell, "get_initial_state", None)
    if make is None:
        return [tf.zeros(each.shape, each.dtype) for each in states]
    return make(inputs=None, batch_size=states[0].shape[0], dtype=layer.variable_dtype)
