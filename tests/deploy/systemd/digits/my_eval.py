"""The task of the trial: 200 examples whose reading can be slowed down, to stop an evaluation half way."""

import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from sidecar import Task

PAUSE = Path("/shared/pause")
"""Seconds that reading the evaluation data takes; no file, no pause."""


def build_model() -> keras.Model:
    """Build a model of two dense layers."""
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)])


def examples() -> tuple[np.ndarray, np.ndarray]:
    """200 points, on two sides of a plane."""
    x = np.random.default_rng(2).normal(size=(200, 8)).astype("float32")
    return x, (x.sum(axis=1) > 0).astype("int32")


def test_set() -> tf.data.Dataset:
    """The examples one by one, as slowly as asked."""

    def read():
        seconds = float(PAUSE.read_text()) if PAUSE.exists() else 0.0
        for x, y in zip(*examples(), strict=True):
            time.sleep(seconds / 200)
            yield x, y

    signature = (tf.TensorSpec((8,), tf.float32), tf.TensorSpec((), tf.int32))
    return tf.data.Dataset.from_generator(read, output_signature=signature)


def task() -> Task:
    """Return what the settings name."""
    return Task(
        build_model=build_model,
        eval_sets={"test": test_set},
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        batch_size=16,
    )
