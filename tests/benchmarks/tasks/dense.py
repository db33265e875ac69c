"""A tiny net on many small batches; how many, the environment says."""

import os

import keras
import numpy as np

from sidecar import Task

BATCHES = int(os.environ.get("BENCH_BATCHES", "100"))
BATCH = 16


def build_model():
    return keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)]
    )


def arrays():
    rng = np.random.default_rng(3)
    examples = BATCHES * BATCH
    return rng.normal(size=(examples, 8)).astype(np.float32), rng.integers(0, 4, examples).astype(np.int32)


def task():
    return Task(
        build_model=build_model,
        eval_sets={"test": arrays},
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        batch_size=BATCH,
    )
