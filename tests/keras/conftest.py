"""Checkpoints that real writers wrote; and a small model of Keras with its data, in a process that has TensorFlow."""

from types import SimpleNamespace

import pytest
from checkpoints.conftest import clock, put, recorded, root

__all__ = ["clock", "put", "recorded", "root"]

EXAMPLES, FEATURES, BATCH = 101, 4, 16


@pytest.fixture(scope="session")
def small(digits):
    """Makers of a model, its data and its checkpoints. Nothing is trained: random weights are checkpoints, too."""
    import keras
    import numpy as np
    import tensorflow as tf

    del digits
    rng = np.random.default_rng(5)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int64")

    def model(*, is_built=False, is_compiled=True, width=8, metrics=("accuracy",), of=keras, **options):
        made = of.Sequential([of.layers.Dense(width, activation="relu"), of.layers.Dense(2, activation="softmax")])
        if is_compiled:
            loss = "sparse_categorical_crossentropy"
            made.compile(optimizer="adam", loss=loss, metrics=list(metrics), **options)
        if is_built:
            made.build((None, FEATURES))
        return made

    def trained(iterations, **changes):
        made = model(is_built=True, **changes)
        made.optimizer.iterations.assign(iterations)
        return made

    def dataset():
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)

    return SimpleNamespace(keras=keras, tf=tf, np=np, x=x, y=y, model=model, trained=trained, dataset=dataset)


@pytest.fixture
def new_evaluator(small, tmp_path):
    """Make evaluators that end by themselves, and do not wait."""
    from sidecar.keras import SidecarEvaluator

    def new(model=None, data=None, folder=tmp_path, **options):
        quick = {"stop_idle_seconds": 0.0, "interval_seconds": 0.01} | options
        return SidecarEvaluator(model or small.model(), small.dataset() if data is None else data, folder, **quick)

    return new


@pytest.fixture(autouse=True)
def _files_are_quiet_at_once(monkeypatch):
    """Nobody writes any more when these tests begin to watch."""
    from sidecar.keras.checkpoint_watch import CheckpointWatch

    monkeypatch.setitem(CheckpointWatch.__init__.__kwdefaults__, "quiet_seconds", 0.0)
