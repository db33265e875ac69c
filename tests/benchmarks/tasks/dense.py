"""A tiny net on many small batches; how many, the environment says."""

import keras
from dense_data import BATCH, arrays

from sidecar import Task


def build_model():
    return keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)]
    )


def task():
    return Task(
        build_model=build_model,
        eval_sets={"test": arrays},
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        batch_size=BATCH,
    )
