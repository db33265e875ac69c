"""Call the user's callbacks during an exact evaluation, as `model.evaluate` of Keras does."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.states import SetStates


class CallbackCalls:
    """Call the callbacks of one evaluation, and print the line of Keras at its end.

    Args:
        model: The model.
        callbacks: The user's callbacks.
        batches: Number of batches, if known.
        numbers: Computes the metrics from their states.
    """

    def __init__(
        self,
        model: Any,
        callbacks: Sequence[Any],
        batches: int | None,
        numbers: Callable[[SetStates], dict[str, float]],
    ) -> None:
        library = keras_of(model)
        self._callbacks = library.callbacks.CallbackList(
            list(callbacks), model=model, verbose=2, epochs=1, steps=batches
        )
        self._bar = library.utils.Progbar(batches, verbose=2, unit_name="step")
        self._numbers = numbers
        default = library.callbacks.Callback.on_test_batch_end
        self._are_told = any(
            getattr(callback.on_test_batch_end, "__func__", None) is not default
            for callback in self._callbacks.callbacks
        )
        self._batch = -1

    def begin_evaluation(self) -> None:
        """Handle the beginning."""
        self._callbacks.on_test_begin()

    def begin(self) -> None:
        """Handle a batch that is about to be computed."""
        self._batch += 1
        self._callbacks.on_test_batch_begin(self._batch)

    def end(self, states: Callable[[], SetStates]) -> None:
        """Pass on the numbers up to this batch, which are computed only if a callback takes them."""
        if self._are_told:
            self._callbacks.on_test_batch_end(self._batch, self._numbers(states()))

    def end_evaluation(self, numbers: dict[str, float]) -> None:
        """Handle the end, with the final metrics."""
        self._callbacks.on_test_end(dict(numbers))
        self._bar.stateful_metrics = set(numbers)  # they are shown as they are, without averages
        self._bar.update(self._batch + 1, list(numbers.items()), finalize=True)


def keras_of(model: Any) -> Any:
    """Return the module `keras` or `tf_keras`, whichever the model is of."""
    if is_keras_2(model):
        return sys.modules["tf_keras"]
    return keras


def announce(callbacks: Sequence[Any], found: DiscoveredCheckpoint) -> None:
    """Tell callbacks that ask for it, as `SidecarEvaluatorModelExport` does, which checkpoint is evaluated."""
    for callback in callbacks:
        if (set_checkpoint := getattr(callback, "set_checkpoint", None)) is not None:
            set_checkpoint(found.checkpoint.name, found.checkpoint.step)


def announce_data(callbacks: Sequence[Any], data: str | None) -> None:
    """Tell callbacks that ask for it what tells the data apart, None if that is unknown."""
    for callback in callbacks:
        if (set_data := getattr(callback, "set_data", None)) is not None:
            set_data(data)
