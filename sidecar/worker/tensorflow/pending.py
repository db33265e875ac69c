"""Outputs of the last few batches, on their way into the states.

Sums are exact, so it does not matter when a number enters them; adding many at once costs little more than adding one.
"""

from typing import Any, Final

import tensorflow as tf

from sidecar.worker.states import SetStates
from sidecar.worker.tensorflow.measure import Measurement

_BATCHES: Final = 64  # beyond that nothing is saved any more
_BYTES: Final = 1 << 20  # predictions of large images are added batch by batch: copies of them would cost more


class Pending:
    """Gathers what a step returned.

    Args:
        measurement: Whose step it is.
        states: To which it adds.
    """

    def __init__(self, measurement: Measurement, states: SetStates) -> None:
        self._measurement, self._states = measurement, states
        self._structure: Any = None
        self._arrays: list[list[Any]] = []  # a list for each batch
        self._firsts: list[int | None] = []
        self._bytes = 0

    def add(self, outputs: Any, first: int | None) -> None:
        """Take one batch's outputs, eager tensors."""
        arrays = [tensor.numpy() for tensor in tf.nest.flatten(outputs)]
        self._structure = outputs
        self._arrays.append(arrays)
        self._firsts.append(first)
        self._bytes += sum(array.nbytes for array in arrays)
        if len(self._firsts) == _BATCHES or self._bytes >= _BYTES:
            self.flush()

    def flush(self) -> None:
        """Add what was gathered."""
        if not self._firsts:
            return
        by_output = [list(arrays) for arrays in zip(*self._arrays, strict=True)]
        firsts = self._firsts
        self._arrays, self._firsts, self._bytes = [], [], 0
        self._measurement.add(self._states, tf.nest.pack_sequence_as(self._structure, by_output), firsts)
