"""A model whose only weight is the step at which it was saved, so that the metric says which checkpoint was read."""

import time

import keras
import numpy as np
import tensorflow as tf

from sidecar import EvalSet, Task

EXAMPLES = 10
PAUSE_SECONDS = 0.02  # for each: an evaluation takes twice as long as the time between two saves


def build_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])


def prepare(number):
    def dawdle(number):
        time.sleep(PAUSE_SECONDS)
        return np.ones((1,), "float32") * np.float32(number >= 0)

    x = tf.ensure_shape(tf.numpy_function(dawdle, [number], tf.float32), (1,))
    return x, tf.zeros((1,))


def task():
    """The error against zero is the weight."""
    return Task(
        build_model=build_model,
        eval_sets={"test": EvalSet(lambda: tf.data.Dataset.range(EXAMPLES), prepare)},
        metrics=lambda: [keras.metrics.MeanAbsoluteError(name="step")],
        loss=keras.losses.MeanAbsoluteError(),
        batch_size=EXAMPLES,
    )
