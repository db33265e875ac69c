"""Seed what a model draws while it is evaluated: the same numbers each time, for any number of workers.

Before each batch the generators that a model holds are set from the weights that are evaluated and the batch's number.
What a model draws from elsewhere cannot be set: a first batch that is evaluated twice tells, to the bit.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.data import array_of
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.backends.tensorflow.rounding import is_near, tolerance_of
from sidecar.evaluation.failures import EvaluationError

_LARGEST: Final = 2**31 - 1  # what every kind of generator takes

NOTE: Final = (
    "the model draws random numbers in an evaluation: they are seeded by its weights and each batch's number, so the "
    "same weights get the same numbers"
)


class Randomness:
    """The generators that a model draws from.

    Args:
        model: Built.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.is_drawn = False
        """Whether a first batch depends on them."""

    def seed(self, seed: Any) -> None:
        """Set all of them from an int64 tensor (2,), within a trace or not."""
        for index, state in enumerate(_states(self._model)):
            own = tf.random.experimental.stateless_fold_in(seed, index)
            drawn = tf.random.stateless_uniform(state.shape, own, 0, _LARGEST, tf.int64)
            state.assign(tf.cast(drawn, state.dtype))

    def check(self, evaluate: Callable[[], Any]) -> None:
        """Evaluate a first batch several times; raises `EvaluationError` unless equal seeds make equal bits.

        Args:
            evaluate: Returns a nested structure of tensors: all that becomes of the batch, predictions and states.
        """
        evaluate()  # a generator may be made when it is first drawn from
        first = self._seeded(0, evaluate)
        require_equal(first, self._seeded(0, evaluate))
        self.is_drawn = any(True for _ in _states(self._model)) and not _is_equal(first, self._seeded(1, evaluate))

    def _seeded(self, seed: int, evaluate: Callable[[], Any]) -> list[Any]:
        self.seed(tf.constant([seed, 0], tf.int64))
        RecurrentStates(self._model).reset()
        return [array_of(each) for each in tf.nest.flatten(evaluate(), expand_composites=True) if each is not None]


def require_equal(one: list[Any], other: list[Any]) -> None:
    """Raise unless what one batch came to twice is equal to the bit."""
    if not _is_equal(one, other):
        raise EvaluationError(
            "task_error",
            "the first batch evaluated twice gives different numbers: the model draws random numbers that cannot be "
            "seeded from outside, or keeps state from batch to batch. Draw with keras.random from a SeedGenerator that "
            "is an attribute of the layer or model (in tf_keras from a tf.random.Generator), which is then seeded by "
            "weights and batch; or draw nothing in an evaluation",
        )


def seed_of(weights: str, eval_set: str, batch: int | bytes) -> Any:
    """Return the seed of one batch.

    Args:
        weights: Digest of the values of the model's variables.
        eval_set: Its name.
        batch: Its number in the eval set, or where nobody knows that a digest of what it holds.
    """
    number = batch if isinstance(batch, int) else int.from_bytes(batch[:7], "big")
    digest = hashlib.sha256(f"{weights} {eval_set}".encode(errors="surrogateescape")).digest()
    return tf.constant([int.from_bytes(digest[:7], "big"), number], tf.int64)


def _is_equal(one: list[Any], other: list[Any]) -> bool:
    """Return whether all is equal to the bit; on a GPU, whose kernels add in no fixed order, up to rounding."""
    by_bit = not tf.config.list_logical_devices("GPU")
    return len(one) == len(other) and all(
        first.shape == second.shape and (_bits(first) == _bits(second) or not (by_bit or _differs(first, second)))
        for first, second in zip(one, other, strict=True)
    )


def _bits(array: Any) -> Any:
    return array.tolist() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()


def _differs(one: Any, other: Any) -> bool:
    return bool(one.dtype.hasobject or one.dtype.kind in "biu" or not is_near(one, other, tolerance_of(one.dtype.name)))


def _states(model: Any) -> Iterator[Any]:
    """Return the variables in which generators keep what comes next."""
    layers = getattr(model, "_flatten_layers", None)
    if layers is None:  # a stored graph
        return
    for layer in layers():
        yield from (each.state for each in getattr(layer, "_seed_generators", ()))  # of Keras 3
    if "keras" in sys.modules:
        from keras.src.backend.common import global_state

        general = global_state.get_global_attribute("global_seed_generator")
        if general is not None:
            yield general.state
    for each in tf.train.TrackableView(model).descendants():
        if isinstance(each, tf.random.Generator):
            yield each.state
