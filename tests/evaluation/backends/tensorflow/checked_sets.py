# ruff: noqa: ARG002, D102 - the signatures are those of Keras
"""Metrics and models that depend on batches."""

import importlib

import numpy as np

from sidecar import Task

EXAMPLES, BATCH = 91, 8

X = np.random.default_rng(1).normal(size=(EXAMPLES, 3)).astype("float32")

Y = (X[:, 0] + np.random.default_rng(2).normal(size=EXAMPLES) > 0).astype("int32")

TEXTS = [np.random.default_rng(n).integers(1, 9, 3 + n % 11) for n in range(EXAMPLES)]


def dense(library="keras"):
    of = importlib.import_module(library)
    return of.layers.Dense(2, activation="softmax", kernel_initializer=of.initializers.Orthogonal(seed=1))


def plain(library="keras"):
    of = importlib.import_module(library)
    return of.Sequential([of.Input((3,)), dense(library)])


def with_batch_statistics():
    """A model that does not tell its layer that this is an evaluation."""
    import keras

    class Normalized(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm, self.out = keras.layers.BatchNormalization(momentum=1.0), dense()

        def call(self, x, training=False):
            return self.out(self.norm(x, training=True))

    return Normalized()


def centered():
    import keras

    x = keras.Input((3,))
    return keras.Model(x, dense()(x - keras.ops.mean(x, axis=0)))


def of_texts(*, masked):
    import keras

    x = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(
        9, 4, mask_zero=masked, embeddings_initializer=keras.initializers.Orthogonal(seed=2)
    )(x)
    return keras.Model(x, dense()(keras.layers.GlobalAveragePooling1D()(hidden)))


def arrays():
    return X, Y


def padded():
    import tensorflow as tf

    pairs = list(zip(TEXTS, Y, strict=True))
    spec = (tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int32))
    return tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=spec).padded_batch(BATCH)


def task(model, source=arrays, **changes):
    size = None if source is padded else BATCH
    return Task(model, {"test": source}, batch_size=size, restore=lambda *_: None, **changes)


def accuracy():
    import keras

    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def compiled(build):
    def make():
        model = build()
        model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return make


def noted(evaluate, made, ranks=(1, 2, 3)):
    """Return the notes, which are the same for any number of ranks and in later evaluations."""
    found = [each for number in ranks for each in evaluate(made(), "nowhere", "nowhere", ranks=number)]
    assert all(each.notes == found[0].notes and each.hexes == found[0].hexes for each in found)
    return found[0].notes


def auc(y, scores):
    positive, negative = scores[y == 1, 1], scores[y == 0, 1]
    return float((positive[:, None] > negative[None]).mean()) if len(positive) and len(negative) else 0.5


def weighted(y, y_pred):
    """The loss of each example, on a scale that its batch defines."""
    import keras

    losses = keras.losses.sparse_categorical_crossentropy(y, y_pred)
    return losses / keras.ops.max(losses)


class Divided:
    """A loss of one's own, which divides by the weights of the labels unless it is told not to."""

    reduction = "mean"

    def __call__(self, y, y_pred, sample_weight=None):
        import keras

        weights = keras.ops.cast(1 + 3 * y, "float32")
        losses = weights * keras.losses.sparse_categorical_crossentropy(y, y_pred)
        return losses if self.reduction == "none" else keras.ops.sum(losses) / keras.ops.sum(weights)
