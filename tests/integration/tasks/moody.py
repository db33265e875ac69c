"""The plain task, going wrong as the file MOOD says: one word for each worker that builds it, the last one stays."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import plain
import tensorflow as tf

NUMBERS = list(np.arange(plain.CLASSES))
FILE = Path(os.environ["MOOD"])


def now():
    """The mood of this moment."""
    return FILE.read_text().split()[0]


@cache
def at_birth():
    """The mood in which this worker built the task; the next one finds the next."""
    first, *others = FILE.read_text().split()
    if others:
        FILE.write_text(" ".join(others))
    return first


def moody_set():
    mood = at_birth()
    data = tf.data.Dataset.from_tensor_slices((plain.X, plain.Y))
    if mood == "empty":
        return data.take(0)
    if mood == "unseeded":
        return data.filter(lambda *_: tf.random.uniform([]) < 0.5)
    if mood == "endless":
        return data.repeat()
    return data.map(lambda x, y: (x, tf.ensure_shape(tf.numpy_function(look_up, [y], tf.int64), [])))


def look_up(y):
    return NUMBERS[y + (len(NUMBERS) if now() == "dataset" else 0)]


class MoodyAccuracy(plain.Accuracy):
    """Fails where a metric is first tried."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Keras calls it."""
        if at_birth() == "metric":
            raise ZeroDivisionError("this metric had a bad day")
        return super().update_state(y_true, y_pred, sample_weight)


def task():
    return replace(plain.task_on(moody_set), metrics=lambda: [MoodyAccuracy(name="accuracy")])
