"""The plain task, held up at the gate where a test wants it: in the middle of its data, and when the sums are known."""

from dataclasses import replace

import keras
import numpy as np
import plain
import tensorflow as tf
from gate import pass_by

from sidecar import EvalSet


def read(number):
    """One example; each rank has done a batch, and has another to do, when it comes to the gate."""
    if number >= 3 * plain.BATCH:
        pass_by("evaluate")
    return plain.X[number], np.int64(plain.Y[number])


def prepare(number):
    x, y = tf.numpy_function(read, [number], (tf.float32, tf.int64))
    return tf.ensure_shape(x, (plain.FEATURES,)), tf.ensure_shape(y, ())


class Share(keras.metrics.Metric):
    """The accuracy once more, with a result of its own, which each rank works out after the last sum."""

    def __init__(self, name):
        super().__init__(name=name)
        self.right = self.add_weight(name="right", initializer="zeros")
        self.seen = self.add_weight(name="seen", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Count the batch; there are no weights."""
        del sample_weight
        right = tf.equal(tf.argmax(y_pred, axis=-1), tf.cast(tf.reshape(y_true, [-1]), tf.int64))
        self.right.assign_add(tf.reduce_sum(tf.cast(right, tf.float32)))
        self.seen.assign_add(tf.cast(tf.size(right), tf.float32))

    def result(self):
        """In float32, as Keras has it."""
        pass_by("conclude")
        return self.right / tf.maximum(self.seen, 1.0)


def task():
    source = EvalSet(lambda: tf.data.Dataset.range(plain.EXAMPLES), prepare)
    return replace(plain.task_on(source), metrics=lambda: [plain.Accuracy(name="accuracy"), Share(name="share")])
