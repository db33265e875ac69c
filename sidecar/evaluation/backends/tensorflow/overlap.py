"""Decide whether short batches are computed two at a time, because one does not keep the processors of a worker busy.

Between the operations of a small model, and in Python between its batches, processors wait. The numbers of a batch do
not depend on what runs at the same time, so results are the same to the bit. Two batches take the memory of two: only
short ones, which are small, are computed so, and none on a GPU.
"""

from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

import tensorflow as tf

_AT_ONCE: Final = 2
_SHORT_SECONDS: Final = 0.02
"""The time of a short batch. Longer ones leave few gaps, and may take much memory."""


class Overlap:
    """Provide threads for the batches of a step, once an evaluation has shown that they are short."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="batch")
        self._are_short = False

    def note(self, seconds: float, batches: int) -> None:
        """Note the time of an evaluation with one batch after the other. A busy machine only adds to it."""
        self._are_short |= seconds < _SHORT_SECONDS * batches

    def executor(self) -> Executor | None:
        """Return the threads that compute the batches; None if they are computed one at a time."""
        has_processors = tf.config.threading.get_intra_op_parallelism_threads() != 1
        is_worth_it = self._are_short and has_processors and not tf.config.list_logical_devices("GPU")
        return self._threads if is_worth_it else None
