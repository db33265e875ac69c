"""An evaluation that waits for its input: 5 ms of sleep for every example, as of a slow disk or decoder."""

import time

import keras
import numpy as np
import tensorflow as tf
from conv import CLASSES, EXAMPLES, conv_net

from sidecar import EvalSet, Task

SECONDS = 0.005


def prepare(index):
    def load(number):
        time.sleep(SECONDS)
        return np.full((32, 32, 3), number % CLASSES, np.float32)

    image = tf.ensure_shape(tf.numpy_function(load, [index], tf.float32), (32, 32, 3))
    return image, tf.cast(index % CLASSES, tf.int32)


def task():
    return Task(
        build_model=lambda: conv_net(keras),
        eval_sets={"test": EvalSet(lambda: tf.data.Dataset.range(EXAMPLES), prepare)},
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        batch_size=16,
    )
