"""A tiny classifier on 103 examples; its worker's log tells whenever a model is built and a step is traced."""

import sys

import keras
import numpy as np
import tensorflow as tf

from sidecar import Task

EXAMPLES, FEATURES, CLASSES = 103, 4, 3
BATCH = 8  # the last one is short, and neither 2 nor 3 workers divide 13

_random = np.random.default_rng(7)
X = _random.normal(size=(EXAMPLES, FEATURES)).astype("float32")
Y = _random.integers(0, CLASSES, EXAMPLES)


def say(words):
    """Write a line into the worker's log."""
    sys.stdout.write(f"{words}\n")


class Accuracy(keras.metrics.SparseCategoricalAccuracy):
    """Says when it is traced: a side effect of Python happens at trace time only."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Keras calls it once per batch, or once per trace."""
        if not tf.executing_eagerly():
            say("STEP TRACED")
        return super().update_state(y_true, y_pred, sample_weight)


def build_model():
    say("MODEL BUILT")
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def metrics():
    return [Accuracy(name="accuracy")]


def task_on(source):
    """The task with other data."""
    return Task(
        build_model=build_model,
        eval_sets={"test": source},
        metrics=metrics,
        loss=keras.losses.SparseCategoricalCrossentropy(),
        batch_size=BATCH,
    )


def task():
    return task_on(lambda: (X, Y))
