"""A tiny net whose evaluation takes a second of sleep for two workers, and tells when it begins.

The preparation of the second batch, which no worker needs for its model, writes a line with `time.monotonic()` to the
file MARKS.
"""

import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from dense import BATCH, build_model

from sidecar import EvalSet, Task

EXAMPLES = 50 * BATCH
SECONDS = 0.0025
MARKS = Path(os.environ["MARKS"])


def read(number):
    if number == BATCH:
        with MARKS.open("a") as marks:
            marks.write(f"{time.monotonic()}\n")
    time.sleep(SECONDS)
    return np.full(8, number % 7, np.float32), np.int32(number % 4)


def prepare(number):
    x, y = tf.numpy_function(read, [number], (tf.float32, tf.int32))
    return tf.ensure_shape(x, (8,)), tf.ensure_shape(y, ())


def task():
    return Task(
        build_model=build_model,
        eval_sets={"test": EvalSet(lambda: tf.data.Dataset.range(EXAMPLES), prepare)},
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        batch_size=BATCH,
    )
