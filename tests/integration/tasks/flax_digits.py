"""A Flax model of the real digits, whose parameters are saved as msgpack; data come from an .npz file."""

import os

import jax
from flax import linen, serialization

from sidecar import Task
from sidecar.data import npz
from sidecar.metrics import Accuracy, LogLoss


class Classifier(linen.Module):
    """A classifier of two dense layers."""

    @linen.compact
    def __call__(self, x):
        """Return the probabilities of the ten digits."""
        return linen.softmax(linen.Dense(10)(linen.relu(linen.Dense(32)(x))))


MODEL = Classifier()
apply = jax.jit(MODEL.apply)


def load(path):
    """Return the parameters that a checkpoint holds."""
    template = MODEL.init(jax.random.key(0), jax.numpy.zeros((1, 64)))
    with open(path, "rb") as file:  # noqa: PTH123 - as users write it
        return serialization.from_bytes(template, file.read())


task = Task(
    load=load,
    predict=apply,
    eval_sets={"test": npz(os.environ.get("DIGITS", "digits.npz"), "x", "y")},
    metrics=lambda: [Accuracy(), LogLoss()],
    batch_size=64,
)
