"""The plain task with a model that was never trained."""

import keras
import plain

from sidecar import Task


def build_model():
    return keras.Sequential([keras.Input((plain.FEATURES,)), keras.layers.Dense(99), keras.layers.Dense(plain.CLASSES)])


def task():
    return Task(
        build_model=build_model, eval_sets={"test": lambda: (plain.X, plain.Y)}, metrics=plain.metrics, batch_size=8
    )
