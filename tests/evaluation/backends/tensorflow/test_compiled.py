# ruff: noqa: ARG001, ARG002 - the signatures are Keras'
"""Means over batches, as scripts compute them: `model.evaluate`'s number for any number of workers, labelled."""

import importlib

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLES, BATCH, STEPS, CLASSES = 23, 4, 5, 3
X = np.random.default_rng(1).integers(0, 6, (EXAMPLES, STEPS))
Y = np.random.default_rng(2).integers(0, CLASSES, (EXAMPLES, STEPS))
LIBRARIES = ["keras", "tf_keras"]


def ramp(shape, **_):
    """Weights that are the same in every model."""
    import tensorflow as tf

    return tf.reshape(tf.linspace(-1.0, 1.0, int(np.prod(shape))), [int(size) for size in shape])


def tagger(of):
    x = of.Input((STEPS,), dtype="int32")
    hidden = of.layers.Embedding(6, 4, embeddings_initializer=ramp)(x)
    return of.Model(x, of.layers.Dense(CLASSES, activation="softmax", kernel_initializer=ramp)(hidden))


def of_tokens(y, y_pred):
    """A mean over what is not padding, as authors write it: label 0 does not count."""
    import tensorflow as tf

    y = tf.cast(y, tf.int32)
    single = -tf.math.log(tf.gather(y_pred, y, batch_dims=2) + 1e-7)
    kept = tf.cast(y > 0, single.dtype)
    return tf.reduce_sum(single * kept) / tf.reduce_sum(kept)


def share_of_zero(y, y_pred):
    """One number for a batch."""
    import tensorflow as tf

    return tf.reduce_mean(tf.cast(tf.argmax(y_pred, -1) == 0, tf.float32))


def with_own_loss(of):
    model = tagger(of)
    model.compile(loss=of_tokens)
    return model


def with_function(of):
    model = tagger(of)
    model.compile(loss="sparse_categorical_crossentropy", metrics=[share_of_zero, "accuracy"])
    return model


def with_reduction(of, reduction="sum"):
    model = tagger(of)
    model.compile(loss=of.losses.SparseCategoricalCrossentropy(reduction=reduction))
    return model


def with_tracker(of):
    """The test_step of Keras' guide "Customizing fit() with TensorFlow"."""

    class Guide(of.Model):
        def __init__(self):
            super().__init__()
            self.inner = tagger(of)
            self.loss_tracker = of.metrics.Mean(name="loss")
            self.mae = of.metrics.SparseCategoricalCrossentropy(name="xent")

        def call(self, x, training=False):
            return self.inner(x)

        def test_step(self, data):
            x, y = data
            y_pred = self(x, training=False)
            self.loss_tracker.update_state(of_tokens(y, y_pred))
            self.mae.update_state(y, y_pred)
            return {each.name: each.result() for each in self.metrics}

        @property
        def metrics(self):
            return [self.loss_tracker, self.mae]

    model = Guide()
    model.compile()
    return model


CASES = {
    "own loss": (with_own_loss, ["loss"]),
    "function": (with_function, ["share_of_zero"]),
    "sum": (with_reduction, ["loss"]),
    "tracker": (with_tracker, ["loss"]),
}


def batches():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def task(build, **changes):
    return Task(build_model=build, eval_sets={"test": batches}, restore=lambda *_: None, **changes)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.drawn(1)
def test_a_mean_over_batches_is_the_number_of_evaluate(evaluate, case, library):
    """Batches do not depend on the number of workers, so neither does the number; the result says what it is."""
    of = importlib.import_module(library)
    build, labelled = CASES[case]
    found = [evaluate(task(lambda: build(of)), "nowhere", ranks=ranks) for ranks in (1, 2)]
    model = build(of)
    model.run_eagerly = True  # a trace takes longer than these few batches
    expected = model.evaluate(batches(), verbose=0, return_dict=True)
    assert found[0].hexes == found[1].hexes
    assert {name: found[0][name].value for name in expected} == pytest.approx(expected, rel=2e-6)
    (note,) = [each for each in found[0].notes if "mean over batches" in each or "means over batches" in each]
    assert note.split(" ")[: len(labelled)] == labelled
    assert found[1].notes == found[0].notes


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_sum_over_examples_is_not_labelled(evaluate, library):
    """Only what depends on the batches is."""
    of = importlib.import_module(library)

    def build():
        model = tagger(of)
        model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    assert evaluate(task(build), "nowhere", ranks=2).notes == ()


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_evaluate_of_ones_own_is_named(evaluate, library):
    """Only the `test_step` of a model is called, so what its `evaluate` adds is missing."""
    of = importlib.import_module(library)

    class Own(of.Model):
        def evaluate(self, *args, **options):
            return {"accuracy": 0.0}

    def build():
        x = of.Input((STEPS,), dtype="int32")
        model = Own(x, tagger(of)(x))
        model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    (note,) = evaluate(task(build), "nowhere").notes
    assert note.startswith("the model's own evaluate is not called")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("loss", ["own", pytest.param("sum", marks=pytest.mark.nightly)])
def test_a_loss_of_the_task_may_be_one_number_for_a_batch(evaluate, loss, library):
    """As Keras weighs it in `evaluate`: by the examples of its batch."""
    of = importlib.import_module(library)

    def made():
        return of_tokens if loss == "own" else of.losses.SparseCategoricalCrossentropy(reduction="sum")

    found = [evaluate(task(lambda: tagger(of), loss=made()), "nowhere", ranks=ranks) for ranks in (1, 2)]
    model = tagger(of)
    model.compile(loss=made(), run_eagerly=True)
    assert found[0].hexes == found[1].hexes
    assert found[0]["loss"].value == pytest.approx(model.evaluate(batches(), verbose=0), rel=2e-6)
    assert found[0]["loss"].lower is None
    assert any("loss is a mean over batches" in note for note in found[0].notes)


def test_a_mean_over_batches_of_a_set_that_divides_itself_is_refused(evaluate):
    """Its batches depend on the number of workers, and so would the number."""
    import keras
    import tensorflow as tf

    from sidecar import EvalSet
    from sidecar.evaluation.failures import EvaluationError

    def source(shard):
        return tf.data.Dataset.from_tensor_slices((X, Y)).shard(shard.world_size, shard.rank).batch(BATCH)

    own = Task(build_model=lambda: with_own_loss(keras), eval_sets={"test": EvalSet(source)}, restore=lambda *_: None)
    with pytest.raises(EvaluationError) as caught:
        evaluate(own, "nowhere", ranks=2)
    assert caught.value.kind == "task_error"
    assert "'loss'" in str(caught.value)
    assert "divides itself" in str(caught.value)
