"""Restore checkpoints into the user's model and evaluate it, exactly or with Keras' own `evaluate`.

The exact evaluation is the one that a worker process of the daemon runs, with one rank: the same restore, the same
traced steps, the same sums. Only the callbacks of the user are added. The numbers are therefore those of
`sidecar eval`, to the bit, if the numeric profile is the same.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.errors import EvaluationFailedError, SidecarError, TaskError
from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.backends.tensorflow.restore import restore
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.eval_loop import EXAMPLES
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.states import SetStates, exact_sum
from sidecar.evaluation.task import Task
from sidecar.keras.evaluation_loop import LOG, Evaluation, iterations_of
from sidecar.protocol.states import FailureKind
from sidecar.system.plain_text import one_line, shortened

_SET: Final = "validation"
_MOST_CHARACTERS: Final = 500  # of an error of Keras, which may write the values of a batch into it
_MIRRORED: Final = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
_CACHE_BYTES: Final = 1024**3  # of data that stay in memory, as in a worker process


def open_evaluation(
    model: Any, source: Callable[[], Any], callbacks: Sequence[Any], *, steps: int | None, exact: bool
) -> Evaluation:
    """Try model, metrics and data on a first batch, before a checkpoint is there.

    Raises `TaskError` if the model is not compiled or not of TensorFlow, data, model or metrics cannot be evaluated, or
    a callback is of another Keras than the model.
    """
    if not getattr(model, "compiled", getattr(model, "_is_compiled", False)):  # Keras 3, tf_keras
        raise TaskError(
            f"the model {shortened(model)} is not compiled, so there is nothing to measure: call model.compile(loss=…, "
            f"metrics=…) before it is given to SidecarEvaluator"
        )
    if keras_of(model) is keras and keras.backend.backend() != "tensorflow":
        raise TaskError(
            f"Keras computes with {keras.backend.backend()} here, and only TensorFlow is supported: set "
            f"KERAS_BACKEND=tensorflow before Keras is imported"
        )
    for callback in callbacks:
        # Keras 2 asks each callback for its hooks, which callbacks of Keras 3 do not tell.
        if not hasattr(callback, "_implements_train_batch_hooks" if is_keras_2(model) else "set_model"):
            name = keras_of(model).__name__
            raise TaskError(
                f"callbacks=… holds {shortened(callback)}, but the model is of {name}: give a {name}.callbacks.Callback"
            )
    if not exact:
        return PlainEvaluation(model, source, callbacks, steps)
    if is_keras_2(model) and isinstance(model.distribute_strategy, _MIRRORED):
        raise TaskError(
            f"the model is of Keras 2 and was made under {type(model.distribute_strategy).__name__}, so only "
            f"model.evaluate can update its metrics: give exact=False, or make the model outside of the strategy"
        )
    with explained():
        try:
            return ExactEvaluation(model, _evaluator(model, source, steps), callbacks, steps)
        except (EvaluationError, SidecarError):
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:_MOST_CHARACTERS]
            raise TaskError(
                f"the model cannot be evaluated on the first batch of data: {type(error).__name__}: {text}"
            ) from error


def _evaluator(model: Any, source: Callable[[], Any], steps: int | None) -> KerasEvaluator:
    """Build the evaluator of a worker process, and read the data once. Warn if it has fewer batches than `steps`.

    If the data comes in another order each time, batches are taken as they come: one process need not compare them with
    those of others. Metrics that are means over batches are refused then.
    """
    evaluator = _build(model, lambda: source())  # noqa: PLW0108 - the parameters of a function say how data is divided
    try:
        (stream,) = evaluator.read(_nothing)
        if steps is not None and stream.batches < steps:
            LOG.warning("data=… has %d batches, fewer than steps=%d: each evaluation ends there", stream.batches, steps)
    except EvaluationError as error:
        if error.kind != FailureKind.STREAM_DIFFERS:
            raise
        evaluator = _build(model, lambda shard: source())  # noqa: ARG005 - see above
        evaluator.read(_nothing)
    return evaluator


def _build(model: Any, source: Callable[..., Any]) -> KerasEvaluator:
    task = Task(build_model=lambda: model, eval_sets={_SET: source}, intervals=False)
    threads = len(os.sched_getaffinity(0))
    return KerasEvaluator.build(task, Shard(0, 1), threads=threads, cache_bytes=_CACHE_BYTES, sets_back=False)


def _nothing() -> None:
    """Ignore a sign of life."""


class ExactEvaluation:
    """Evaluate with exact sums."""

    def __init__(self, model: Any, evaluator: KerasEvaluator, callbacks: Sequence[Any], steps: int | None) -> None:
        self._model, self._evaluator, self._callbacks, self._steps = model, evaluator, callbacks, steps

    def restore(self, found: DiscoveredCheckpoint, path: str) -> None:
        """Restore all variables of the model, and the optimizer's iterations. Raises `EvaluationError`."""
        with _restoring():
            self._evaluator.restore(path)()
        set_iterations(self._model, found)

    def evaluate(self, found: DiscoveredCheckpoint, tick: Callable[[], None]) -> tuple[int | None, dict[str, float]]:
        """Evaluate, calling the callbacks, and return the number of examples and the metrics."""
        announce(self._callbacks, found)
        with explained():
            (stream,) = self._evaluator.read(tick)
            announce_data(self._callbacks, f"{stream.fingerprint} {stream.examples}" if stream.fingerprint else None)
            batches = stream.batches if stream.is_counted else self._steps
            calls = CallbackCalls(self._model, self._callbacks, batches, self._numbers)
            hashed = self._evaluator.digest()
            calls.begin_evaluation()
            states = self._evaluator.evaluate(tick, observer=calls)
            hashed()
            while self._evaluator.begins_again(states):  # without callbacks, which have seen each batch
                self._evaluator.read(tick)
                states = self._evaluator.evaluate(tick)
            numbers = self._numbers(states[_SET])
        calls.end_evaluation(numbers)
        return int(exact_sum(states[_SET], EXAMPLES).integers()), numbers

    def _numbers(self, states: SetStates) -> dict[str, float]:
        values = self._evaluator.compute({_SET: states})[_SET].values
        return {name: float.fromhex(value.hex) for name, value in values.items()}


class PlainEvaluation:
    """Evaluate with `model.evaluate`, for metrics and models that exact sums refuse."""

    def __init__(self, model: Any, source: Callable[[], Any], callbacks: Sequence[Any], steps: int | None) -> None:
        self._model, self._source, self._callbacks, self._steps = model, source, callbacks, steps
        self._is_built = False

    def restore(self, found: DiscoveredCheckpoint, path: str) -> None:
        """Restore all variables of the model, and the optimizer's iterations. Raises `EvaluationError`."""
        if not self._is_built:  # a model without variables cannot be restored
            self._model.evaluate(self._source(), steps=1, verbose=0)
            self._is_built = True
        with _restoring():
            restore(self._model, path, None)
        set_iterations(self._model, found)

    def evaluate(self, found: DiscoveredCheckpoint, tick: Callable[[], None]) -> tuple[int | None, dict[str, float]]:
        """Evaluate as Keras does. The number of examples is unknown."""
        announce(self._callbacks, found)
        logs = self._model.evaluate(
            self._source(), steps=self._steps, callbacks=list(self._callbacks), verbose=2, return_dict=True
        )
        tick()
        return None, dict(_numbers_of(logs))


def _numbers_of(logs: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of `model.evaluate`; those of an array have its name and their index, as with exact sums."""
    for name, value in logs.items():
        for index, number in np.ndenumerate(np.asarray(value)):
            yield "_".join([name, *map(str, index)]), float(number)


def set_iterations(model: Any, found: DiscoveredCheckpoint) -> None:
    """Set the optimizer's iterations, which TensorBoard's callback takes as the step, to those of the checkpoint.

    If the checkpoint does not hold them, the number in its name is taken.
    """
    name, step = one_line(found.checkpoint.name), found.checkpoint.step
    optimizer = getattr(model, "optimizer", None)
    if iterations_of(found) is None:
        place = "stay as they are" if step is None else f"are taken from the name: {step}"
        LOG.warning("%s holds no optimizer that has made a step, so the iterations that callbacks see %s", name, place)
    if step is not None and optimizer is not None:
        optimizer.iterations.assign(step)


@contextmanager
def _restoring() -> Iterator[None]:
    """Give the advice in an `EvaluationError` for a program with its own model, and hide a warning of Keras.

    Keras restores an optimizer next to the model. The one of an evaluator has no state yet, which does no harm.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
            yield
    except EvaluationError as error:
        raise EvaluationError(error.kind, error.for_model) from None
    except (OSError, tf.errors.OpError) as error:
        raise EvaluationError("storage", f"it cannot be read: {error}") from error


@contextmanager
def explained() -> Iterator[None]:
    """Turn the failures of an evaluation into errors for users."""
    try:
        yield
    except EvaluationError as error:
        if error.kind in (FailureKind.TASK_ERROR, FailureKind.STREAM_DIFFERS):
            raise TaskError(f"{error.for_model} (exact=False evaluates as model.evaluate does)") from error
        raise EvaluationFailedError(error.for_model) from error


class CallbackCalls:
    """Call the user's callbacks of one evaluation, and print the line of Keras at its end.

    `batches`: their number, if it is known. `numbers` computes the metrics from their states.
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
