"""100,000,000 examples in batches of 99,991, a prime: no power of two helps a float32 that counts them."""

import os

import keras
import numpy as np
import tensorflow as tf

from sidecar import EvalSet, Task

EXAMPLES = int(os.environ.get("BENCH_EXAMPLES", "100000000"))
BATCH = 99_991


def is_second(index):
    """Labels: every seventh example is of class 1."""
    return index % 7 == 0


def is_negative(index):
    """Inputs: every third example is -1, the others 1. The model calls -1 class 1."""
    return index % 3 == 0


def batches():
    def make(first):
        index = tf.range(first, tf.minimum(first + BATCH, EXAMPLES))
        x = tf.where(is_negative(index), -1.0, 1.0)[:, tf.newaxis]
        return x, tf.cast(is_second(index), tf.int32)

    return tf.data.Dataset.range(0, EXAMPLES, BATCH).map(make)


def build_model():
    return keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(2, activation="softmax")])


def restore(model, path):
    del path
    model.set_weights([np.array([[1.0, -1.0]]), np.zeros(2)])


def task():
    return Task(
        build_model=build_model,
        eval_sets={"test": EvalSet(batches, examples=EXAMPLES)},
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        restore=restore,
    )
