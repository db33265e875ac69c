"""A model that prepares batches in its own `evaluate`, as tasks of KerasHub do, is measured on prepared batches."""

import importlib

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

WORDS = ["good", "bad", "great", "awful", "film", "plot", "actor", "scene"]


def texts():
    chosen = np.random.default_rng(5).choice(WORDS, size=(43, 5))
    return np.array([" ".join(words) for words in chosen]), (chosen == "good").any(axis=1).astype("int32")


def make_class(of):
    """A class of models that takes texts in `evaluate`, and numbers of words in `call`."""
    import tensorflow as tf

    class Classifier(of.Model):
        def __init__(self):
            super().__init__()
            self.bag = of.layers.Dense(2)

        def call(self, words):
            return self.bag(tf.reduce_sum(tf.one_hot(words, 16), axis=1))

        def preprocess_samples(self, x, y=None, sample_weight=None):
            if tf.size(x) > 0:  # needs AutoGraph, as a function of a dataset may
                words = tf.strings.to_hash_bucket_fast(tf.strings.split(x, " "), 16).to_tensor(shape=[None, 5])
            else:
                words = tf.zeros([0, 5], tf.int64)
            return (words, y) if sample_weight is None else (words, y, sample_weight)

        def evaluate(self, x, y, batch_size, **options):
            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size).map(self.preprocess_samples)
            return super().evaluate(data, **options)

    return Classifier


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("measured", ["compiled", "task"])
@pytest.mark.drawn(1)
def test_the_numbers_are_those_of_the_models_own_evaluate(library, measured, tmp_path, evaluate):
    """With metrics of `compile` and of the task, for arrays of texts, with any number of ranks."""
    of = importlib.import_module(library)
    x, y = texts()
    make = make_class(of)

    def build():
        model = make()
        model.compile(
            "adam",
            of.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[of.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
        return model

    saved = build()
    expected = saved.evaluate(x, y, 10, return_dict=True, verbose=0)
    saved.save_weights(tmp_path / "m.weights.h5")
    chosen = {
        "compiled": {},
        "task": {
            "metrics": lambda: [of.metrics.SparseCategoricalAccuracy(name="accuracy")],
            "loss": of.losses.SparseCategoricalCrossentropy(from_logits=True),
        },
    }[measured]
    task = Task(build, {"test": lambda: (x, y)}, batch_size=10, **chosen)
    found = [evaluate(task, str(tmp_path / "m.weights.h5"), ranks=ranks) for ranks in (1, 2, 3)]
    assert found[0].hexes == found[1].hexes == found[2].hexes
    assert found[0]["accuracy"].value == pytest.approx(expected["accuracy"], rel=1e-6)
    assert found[0]["loss"].value == pytest.approx(expected["loss"], rel=1e-6)


def test_a_method_that_evaluate_does_not_call_is_left_alone(tmp_path, evaluate):
    """Keras' own `evaluate` calls no such method, so the numbers are those without it."""
    import keras

    x, y = np.ones((8, 4), "float32"), np.arange(8, dtype="float32").reshape(8, 1)

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(1)

        def call(self, x):
            return self.out(x)

        def preprocess_samples(self, x, y=None, sample_weight=None):
            del sample_weight
            return x * 0, y

    model = Model()
    model.compile(loss="mse")
    expected = model.evaluate(x, y, verbose=0)
    model.save_weights(tmp_path / "m.weights.h5")

    def build():
        made = Model()
        made.compile(loss="mse")
        return made

    found = evaluate(Task(build, {"test": lambda: (x, y)}, batch_size=4), str(tmp_path / "m.weights.h5"))
    assert found["loss"].value == pytest.approx(expected, rel=1e-6)
