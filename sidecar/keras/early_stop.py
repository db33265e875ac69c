"""Stop `fit` of Keras 3 when the sidecar signals that training no longer improves."""

import logging
import os
from collections.abc import Callable
from typing import Any

import keras

from sidecar.early_stop import StopSignal, should_stop

_LOG = logging.getLogger(__name__)


class EarlyStop(keras.callbacks.Callback):  # type: ignore[misc]  # Keras publishes no complete types
    """Stop training once the sidecar has written the signal (its setting `early_stop_patience`).

        model.fit(..., callbacks=[keras.callbacks.ModelCheckpoint(...), EarlyStop("ckpts")])

    Training ends at the end of an epoch, so that a callback that saves then has done so.

    Args:
        checkpoint_dir: Directory in which training saves its checkpoints, as the sidecar has it.
        run: Name of the run, if the sidecar has the setting `run`. Default: the name of the directory.
        state_dir: The sidecar's setting `state_dir`, if it has one.
        every_batches: Ask once this many batches have passed since the last question, too, for long epochs. With
            `steps_per_execution` Keras reports several batches at once. Default: at the end of an epoch only.
        agree: In a job of several processes, return whether any of them passes true: all must stop at the same batch,
            and a file becomes visible on two machines at two moments. Each process calls it equally often. Default:
            this process decides alone.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        run: str | None = None,
        *,
        state_dir: str | os.PathLike[str] | None = None,
        every_batches: int | None = None,
        agree: Callable[[bool], bool] = bool,
    ) -> None:
        super().__init__()
        if every_batches is not None and every_batches < 1:
            raise ValueError(f"every_batches is {every_batches}: give a number of batches, 1 or more")
        self._place = checkpoint_dir, run, state_dir
        self._every_batches, self._agree = every_batches, agree
        self._asked_after = 0  # batches of this epoch
        self.signal: StopSignal | None = None
        """The signal that stopped training; None if none did, or if another process has seen it."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - of Keras
        """Count the batches anew, as Keras does."""
        self._asked_after = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - of Keras
        """Ask in the middle of an epoch, if `every_batches` says so."""
        if self._every_batches is not None and batch + 1 - self._asked_after >= self._every_batches:
            self._asked_after = batch + 1
            self._ask()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras passes them
        """Ask at the end of each epoch."""
        self._ask()

    def _ask(self) -> None:
        checkpoint_dir, run, state_dir = self._place
        self.signal = should_stop(checkpoint_dir, run, state_dir=state_dir)
        if self._agree(self.signal is not None):
            self.model.stop_training = True
            _LOG.warning("training stops: %s", self.signal.reason if self.signal else "another process saw the signal")
