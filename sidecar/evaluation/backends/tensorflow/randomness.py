"""Seed the random generators of a model, so that any number of workers draws the same numbers in every evaluation.

Before each batch, the generators that the model holds are seeded from the evaluated weights and the batch's number.
Other sources of random numbers cannot be seeded. They are detected by evaluating a first batch twice: the results must
be equal to the bit.
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
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.repeatability import REPEATED

_LARGEST: Final = 2**31 - 1  # the largest value that every kind of generator accepts as its state


class Randomness:
    """Seed the generators from which a model draws. `model`: a built model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.is_drawn = False
        """Whether the results of a first batch depend on the seed."""

    def seed(self, seed: Any) -> None:
        """Seed all generators with an int64 tensor (2,). This works inside and outside of a trace."""
        for index, state in enumerate(_states(self._model)):
            generator_seed = tf.random.experimental.stateless_fold_in(seed, index)
            value = tf.random.stateless_uniform(state.shape, generator_seed, 0, _LARGEST, tf.int64)
            state.assign(tf.cast(value, state.dtype))

    def check(self, evaluate: Callable[[], Any]) -> None:
        """Evaluate a first batch several times, and raise `EvaluationError` unless equal seeds give equal bits.

        `evaluate`: evaluates the batch. Returns its predictions and states, as a nested structure of tensors.
        """
        evaluate()  # some generators are created only when the model draws for the first time
        first = self._seeded(0, evaluate)
        require_equal(first, self._seeded(0, evaluate), REPEATED)
        self.is_drawn = any(True for _ in _states(self._model)) and not _is_equal(first, self._seeded(1, evaluate))

    def _seeded(self, seed: int, evaluate: Callable[[], Any]) -> list[Any]:
        self.seed(tf.constant([seed, 0], tf.int64))
        RecurrentStates(self._model).reset()
        tensors = tf.nest.flatten(evaluate(), expand_composites=True)
        return [array_of(tensor) for tensor in tensors if tensor is not None]


def require_equal(one: list[Any], other: list[Any], when: str) -> None:
    """Raise `EvaluationError` unless two evaluations of one batch gave results that are equal to the bit.

    `when` says when the second one was: `REPEATED` or `AFTER_OTHERS`.
    """
    if not _is_equal(one, other):
        raise task_error(
            f"the first batch evaluated {when} gives different numbers: the model draws random numbers that cannot be "
            "seeded from outside, or keeps state from batch to batch. Draw with keras.random from a SeedGenerator that "
            "is an attribute of the layer or model (in tf_keras from a tf.random.Generator), which is then seeded by "
            "weights and batch; or draw nothing in an evaluation"
        )


def seed_of(weights: str, eval_set: str, batch: int | bytes) -> Any:
    """Return the seed of one batch.

    `weights`: digest of the values of the model's variables. `eval_set`: name of the eval set. `batch`: the number of
    the batch in the eval set, or a digest of its content if the number is unknown.
    """
    number = batch if isinstance(batch, int) else int.from_bytes(batch[:7], "big")
    digest = hashlib.sha256(f"{weights} {eval_set}".encode(errors="surrogateescape")).digest()
    return tf.constant([int.from_bytes(digest[:7], "big"), number], tf.int64)


def _is_equal(one: list[Any], other: list[Any]) -> bool:
    """Return whether two results are equal to the bit; on a GPU, whose kernels add in any order, up to rounding."""
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
    """Yield the variables that hold the states of the model's generators."""
    layers = getattr(model, "_flatten_layers", None)
    if layers is None:  # the model is a stored graph
        return
    for layer in layers():
        yield from (generator.state for generator in getattr(layer, "_seed_generators", ()))  # only Keras 3 has them
    if "keras" in sys.modules:
        from keras.src.backend.common import global_state

        global_generator = global_state.get_global_attribute("global_seed_generator")
        if global_generator is not None:
            yield global_generator.state
    for descendant in tf.train.TrackableView(model).descendants():
        if isinstance(descendant, tf.random.Generator):
            yield descendant.state
