"""The task that the demo evaluates with, and the data and the model that its training uses.

A task file is imported in worker processes only, so it may import what it likes. Try it on any checkpoint of the demo:

    sidecar eval sidecar-demo/digits/ckpt-960 --task sidecar/commands/demo/digits.py:task --replicas 2
"""

from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from sidecar import Task

TRAINING_EXAMPLES: Final = 500
"""The training examples: few, so that the network overfits within a minute."""

WRONG_LABELS: Final = 150
"""The training examples whose label is wrong. The network learns the digits first and these errors later, so the best
checkpoint is not the last one."""

HELD_OUT: Final = 397
"""The test examples, all with their own label: a prime number, so that neither the number of workers nor a batch size
divides it."""


def build_model() -> keras.Model:
    """Return a convolutional network for images of 8 x 8 pixels and 10 classes."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def training_set() -> tf.data.Dataset:
    """Return 500 digits as pairs of image and label, 150 of them with a wrong label."""
    images, labels = _digits()
    wrong = np.random.default_rng(seed=2).integers(1, 10, WRONG_LABELS)
    labels[:WRONG_LABELS] = (labels[:WRONG_LABELS] + wrong) % 10
    return tf.data.Dataset.from_tensor_slices((images[:TRAINING_EXAMPLES], labels[:TRAINING_EXAMPLES]))


def test_set() -> tf.data.Dataset:
    """Return 397 other digits as pairs of image and label."""
    images, labels = _digits()
    return tf.data.Dataset.from_tensor_slices((images[-HELD_OUT:], labels[-HELD_OUT:]))


def task() -> Task:
    """Return the task: `--task digits.py:task` names this function."""
    return Task(
        build_model=build_model,
        eval_sets={"test": test_set},
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        loss=keras.losses.SparseCategoricalCrossentropy(),
        batch_size=32,
        predictions=True,
        show=lambda x, _: x,  # the image, for examples that changed
    )


def _digits() -> tuple[Any, Any]:
    """Return images of shape (1797, 8, 8, 1) with values from 0 to 1, and labels of shape (1797,).

    Both are shuffled with a fixed seed: the file is sorted by writer, and every process must see the same order.
    """
    digits = load_digits()
    order = np.random.default_rng(seed=1).permutation(len(digits.target))
    return (digits.images[order, ..., np.newaxis] / 16).astype("float32"), digits.target[order]
