# ruff: noqa: ARG001, ARG002 - the signatures are Keras'
"""Probe whether the states of metrics can be merged."""

import pytest
from evaluation.backends.tensorflow.checked_sets import (
    dense,
    plain,
    task,
)

from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Mean

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_what_is_kept_until_the_end_is_refused(digits, evaluate):
    """The first batch gives the same numbers at once, and others after all other batches."""
    import keras
    import tensorflow as tf

    class Late(keras.layers.Layer):
        def build(self, shape):
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            self.calls.assign_add(1.0)
            return x + tf.where(self.calls > 25.0, 1.0, 0.0)

    seen = []

    def counted(y, p):
        seen.append(len(y))
        return p[:, 1] + (len(seen) > 20)

    tasks = (
        task(
            lambda: keras.Sequential([keras.Input((3,)), Late(), dense()]),
            loss=keras.losses.sparse_categorical_crossentropy,
        ),
        task(plain, metrics=lambda: [Mean(counted)]),
    )
    for made in tasks:
        with pytest.raises(EvaluationError, match="after all others"):
            evaluate(made, "nowhere")
