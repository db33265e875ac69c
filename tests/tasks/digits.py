"""Example tasks on scikit-learn's handwritten digits: the models that the trainer saves, and what is measured of them.

Imported by worker processes, by the trainer and by tests that have TensorFlow. 397 examples are held out: a prime.
"""

import functools
import os
import subprocess
import sys
import threading

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from sidecar import EvalSet, Shard, Task

HELD_OUT = 397
BATCH = 32
SCCE = keras.losses.SparseCategoricalCrossentropy


@functools.cache
def arrays() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return (images.reshape(-1, 8, 8, 1) / 16).astype("float32"), labels.astype("int64")


def train_arrays():
    x, y = arrays()
    return x[:-HELD_OUT], y[:-HELD_OUT]


def held_out_arrays():
    x, y = arrays()
    return x[-HELD_OUT:], y[-HELD_OUT:]


def weights_of(y):
    return ((y % 3 + 1) / 2).astype("float32")


def held_out() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(held_out_arrays())


def weighted() -> tf.data.Dataset:
    x, y = held_out_arrays()
    return tf.data.Dataset.from_tensor_slices((x, y, weights_of(y)))


def layers(of=keras, width=4):
    return [
        of.layers.Conv2D(width, 3, activation="relu"),
        of.layers.BatchNormalization(),
        of.layers.Flatten(),
        of.layers.Dropout(0.3),
        of.layers.Dense(10, kernel_regularizer=of.regularizers.L2(1e-3)),
    ]


def conv(of=keras, width=4):
    return of.Sequential([of.layers.Input((8, 8, 1)), *layers(of, width)])


def compiled(of=keras):
    model = conv(of)
    model.compile(
        optimizer="adam",
        loss=of.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", of.metrics.SparseTopKCategoricalAccuracy(2, name="top2")],
        weighted_metrics=[of.metrics.SparseCategoricalAccuracy(name="weighted_accuracy")],
    )
    return model


def dense():
    return keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])


@keras.saving.register_keras_serializable()
class Subclassed(keras.Model):
    """Without variables until it is called."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(10)

    def call(self, x):
        """Return the logits of the ten digits."""
        return self.dense(self.flatten(x))


@keras.saving.register_keras_serializable()
class Scaled(Subclassed):
    """With a plain tf.Variable, which Keras 3 does not count among the weights."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = tf.Variable(1.0)

    def call(self, x):
        """Return the logits, scaled by the plain variable."""
        return super().call(x) * self.scale


@keras.saving.register_keras_serializable()
class OwnStep(Subclassed):
    """A custom test_step, whose results have other names than its trackers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.loss_tracker = keras.metrics.Mean(name="tracked_loss")
        self.hits = keras.metrics.SparseCategoricalAccuracy(name="hits")

    def test_step(self, data):
        """Update the trackers, and return the loss and the accuracy under other names."""
        x, y = data
        logits = self(x, training=False)
        losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        self.loss_tracker.update_state(losses)
        self.hits.update_state(y, logits)
        return {"cross_entropy": self.loss_tracker.result(), "accuracy": self.hits.result()}


def own_step():
    model = OwnStep()
    model.compile(optimizer="adam")
    return model


def words():
    """A model with a lookup table."""
    lookup = keras.layers.StringLookup(name="lookup", num_oov_indices=1)
    lookup.adapt(tf.constant(["zero", "one", "two"]))
    return keras.Sequential([keras.layers.Input((1,), dtype="string"), lookup, keras.layers.Embedding(4, 10)])


def accuracy():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def make(build_model=conv, eval_sets=None, **changes):
    """A task with what the test wants to be different."""
    usual = {"metrics": accuracy, "loss": SCCE(from_logits=True), "batch_size": BATCH}
    return Task(build_model=build_model, eval_sets=eval_sets or {"test": held_out}, **usual | changes)


# What worker processes are told to import: `digits.py:NAME`.


def task() -> Task:
    """Two sets, one of two batches: of three workers one has none of it."""
    return make(eval_sets={"test": held_out, "few": lambda: held_out().take(BATCH + 1)})


def noisy() -> Task:
    """The same; it prints, reads its input, starts a child, and tells what it finds in its environment."""
    print("the user's own words", flush=True)  # noqa: T201 - users print
    print("TF_CONFIG is", os.environ.get("TF_CONFIG"), "and the input holds", repr(sys.stdin.read()), flush=True)  # noqa: T201
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)  # noqa: T201
    return task()


def _generated(image_of) -> tf.data.Dataset:
    def generate():
        for number, (image, label) in enumerate(zip(*held_out_arrays(), strict=True)):
            yield image_of(number, image), label

    signature = (tf.TensorSpec((8, 8, 1)), tf.TensorSpec((), tf.int64))
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def broken_on_last_rank() -> Task:
    """A set that shards itself, whose data raise in the middle, on the last rank alone."""

    def source(shard: Shard):
        def read(number, image):
            if shard.rank == shard.world_size - 1 and number == 2 * BATCH:
                raise ValueError("the image of example 64 is unreadable")
            return image

        return _generated(read)

    return make(eval_sets={"test": EvalSet(source)})


def hanging() -> Task:
    """Data that stop coming after the third batch."""

    def read(number, image):
        if number == 3 * BATCH + 5:
            threading.Event().wait()
        return image

    return make(eval_sets={"test": lambda: _generated(read)})


def leaving() -> Task:
    """Ends the process, or means to."""
    sys.exit("nothing to do")
