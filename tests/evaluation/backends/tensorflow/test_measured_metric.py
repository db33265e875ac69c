"""Measure with metrics of Keras that a task lists: their numbers by name, of any types, next to the loss."""

import importlib

import numpy as np
import pytest

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

X = np.random.default_rng(1).normal(size=(23, 3)).astype("float32")
Y = np.eye(3, dtype="float32")[np.random.default_rng(2).integers(0, 3, 23)]


def metrics(of):
    return [of.metrics.F1Score(name="f1", average=None), of.metrics.Precision([0.25, 0.5], name="precision")]


def build(of, *, compiled=False):
    model = of.Sequential([of.Input((3,)), of.layers.Dense(3, activation="softmax", kernel_initializer="ones")])
    if compiled:
        model.compile(loss="categorical_crossentropy", metrics=metrics(of))
    return model


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_each_number_has_a_name(evaluate, library):
    """As the model's own evaluation says them, for metrics of the task and of the model."""
    of = importlib.import_module(library)
    ways = {
        "own": (lambda: build(of, compiled=True), None),
        "task": (lambda: build(of), lambda: metrics(of)),
    }
    found = {}
    for way, (model, made) in ways.items():
        task = Task(model, {"test": lambda: (X, Y)}, made, batch_size=4, restore=lambda *_: None)
        one, other = (evaluate(task, "nowhere", ranks=ranks) for ranks in (1, 2))
        assert one.hexes == other.hexes
        found[way] = {name: each.value for name, each in one.values["test"].items() if name != "loss"}
    names = ["f1_0", "f1_1", "f1_2", "precision_0.25", "precision_0.5"]
    assert list(found["task"]) == names
    assert {name.removeprefix("compile_metrics_"): each for name, each in found["own"].items()} == found["task"]
    model = build(of, compiled=True)
    model.run_eagerly = True  # a trace takes longer than these few batches
    alone = model.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)
    expected = [*np.ravel(alone["f1"]), *np.ravel(alone["precision"])]
    assert list(found["own"].values()) == pytest.approx([float(each) for each in expected], rel=2e-6)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_integers_of_few_bits_do_not_wrap_around(evaluate, library):
    """The numbers of images of 8 bits are those of the same numbers as floats; Keras' metrics subtract modulo 256."""
    of = importlib.import_module(library)
    images, labels = np.random.default_rng(3).integers(0, 256, (2, 23, 1)).astype("uint8")

    def model():
        return of.Sequential([of.Input((1,), dtype="uint8"), of.layers.Lambda(lambda x: x, dtype="uint8")])

    def own(y, predictions):
        import tensorflow as tf

        return tf.reduce_mean(tf.cast(tf.abs(y - predictions), tf.float32), -1)

    def listed():
        kinds = of.metrics.MeanAbsoluteError, of.metrics.MeanSquaredError
        return [kind(name=kind.__name__) for kind in kinds] + [of.metrics.MeanMetricWrapper(own, name="own")]

    task = Task(model, {"test": lambda: (images, labels)}, listed, loss=own, batch_size=4, restore=lambda *_: None)
    found = evaluate(task, "nowhere", ranks=2)
    differences = np.abs(images.astype(float) - labels)
    for name in ("MeanAbsoluteError", "own", "loss"):
        assert found[name].value == pytest.approx(differences.mean(), rel=1e-6)
    assert found["MeanSquaredError"].value == pytest.approx((differences**2).mean(), rel=1e-6)


@pytest.mark.parametrize("summed", [True, False])
def test_losses_that_layers_add(evaluate, summed):
    """They are part of the loss, as in Keras; a sum over a batch depends on its size, and a mean does not."""
    import keras
    import tensorflow as tf

    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss((tf.reduce_sum if summed else tf.reduce_mean)(tf.square(x)))
            return x

    def model():
        keras.utils.set_random_seed(3)
        return keras.Sequential([keras.Input((3,)), Adds(), keras.layers.Dense(3, activation="softmax")])

    loss = keras.losses.CategoricalCrossentropy()
    task = Task(model, {"test": lambda: (X, Y)}, loss=loss, batch_size=4, restore=lambda *_: None)
    one, other = (evaluate(task, "nowhere", ranks=ranks) for ranks in (1, 2))
    assert one.hexes == other.hexes
    compiled = model()
    compiled.compile(loss=loss)
    compiled.run_eagerly = True
    assert one["loss"].value == pytest.approx(compiled.evaluate(X, Y, batch_size=4, verbose=0), rel=1e-5)
    assert any("another batch size" in note for note in one.notes) == summed


@pytest.mark.parametrize("is_compiled", [False, True])
def test_values_along_the_examples_are_means_over_batches(evaluate, is_compiled):
    """As with axis=0: Keras weights them by the sizes of batches, and takes no weights for them."""
    import keras

    def made():
        return {"loss": keras.losses.CosineSimilarity(axis=0), "metrics": [keras.metrics.CosineSimilarity(axis=0)]}

    def model():
        built = build(keras)
        built.compile(loss=made()["loss"], metrics=made()["metrics"], weighted_metrics=made()["metrics"])
        return built

    x, y = np.concatenate([X, X])[:37], np.concatenate([Y, Y])[:37]
    own = {"metrics": None} if is_compiled else {"metrics": lambda: made()["metrics"], "loss": made()["loss"]}
    build_model = model if is_compiled else lambda: build(keras)

    def task(*data):
        return Task(build_model, {"test": lambda: data}, batch_size=16, restore=lambda *_: None, **own)

    found = evaluate(task(x, y), "nowhere", ranks=2)
    reference = model()
    expected = reference.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
    assert found["loss"].value == pytest.approx(expected["loss"], rel=1e-5)
    assert found["cosine_similarity"].value == pytest.approx(expected["cosine_similarity"], rel=1e-5)
    assert any("over batches" in note for note in found.notes)
    with pytest.raises(EvaluationError, match=r"weights \(16,\)"):
        evaluate(task(x, y, np.ones(37, "float32")), "nowhere")


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("length", [16, 7])
def test_weights_of_examples_do_not_fit_a_mask_of_positions(evaluate, is_compiled, length):
    """Keras would multiply (16,) with (16, 16), as if the weights were those of positions."""
    import keras

    def model():
        layers = keras.layers
        built = keras.Sequential([layers.Input((None,)), layers.Embedding(9, 4, mask_zero=True), layers.Dense(3)])
        if is_compiled:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            built.compile(loss=loss, weighted_metrics=["accuracy"])
        return built

    own = {} if is_compiled else {"metrics": lambda: [keras.metrics.SparseCategoricalAccuracy()]}
    x = np.random.default_rng(1).integers(0, 9, (37, length))

    def task(weights):
        return Task(model, {"test": lambda: (x, x % 3, weights)}, batch_size=16, restore=lambda *_: None, **own)

    with pytest.raises(EvaluationError, match=r"\(16,\)"):
        evaluate(task(np.ones(37, "float32")), "nowhere")
    assert evaluate(task(np.ones((37, length), "float32")), "nowhere").values["test"]


def test_a_function_that_returns_one_number_for_a_batch(evaluate):
    """It is a mean over batches, also with a single prediction for each example."""
    import keras

    def model():
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1), keras.layers.Flatten()])

    def function(y, y_pred):
        return keras.ops.mean(keras.ops.abs(y - y_pred))

    metrics = {"metrics": lambda: [keras.metrics.MeanMetricWrapper(function, name="error")]}
    task = Task(model, {"test": lambda: (X, Y[:, :1])}, batch_size=4, restore=lambda *_: None, **metrics)
    found = evaluate(task, "nowhere")
    assert any("over batches" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "labels", "arguments", "dtype", "words"),
    [
        ("SparseTopKCategoricalAccuracy", "numbers", (2,), "float16", "Dense(…, dtype='float32')"),
        ("SparseCategoricalAccuracy", "columns", (), "float32", "write CategoricalAccuracy, or labels.argmax(-1)"),
        ("F1Score", "numbers", (), "float32", "keras.utils.to_categorical(labels, 3)"),
        ("MeanIoU", "numbers", (3,), "float32", "OneHotMeanIoU(3, sparse_y_true=True)"),
        ("SparseCategoricalAccuracy", "texts", (), "float32", "np.searchsorted(names, labels)"),
        ("CategoricalCrossentropy", "numbers", (), "float32", "write SparseCategoricalCrossentropy"),
    ],
)
def test_labels_and_predictions_that_keras_refuses_are_told_in_one_sentence(
    evaluate, name, labels, arguments, dtype, words
):
    """Keras' own code raises errors about ranks and nodes; ours names shapes and the line to write."""
    import keras

    def made():
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, activation="softmax", dtype=dtype)])

    given = {"numbers": Y.argmax(-1), "columns": Y, "texts": Y.argmax(-1).astype(str)}[labels]
    is_loss = hasattr(keras.losses, name)
    metric = getattr(keras.losses if is_loss else keras.metrics, name)(*arguments)
    measured = {"loss": metric} if is_loss else {"metrics": lambda: [metric]}
    task = Task(made, {"test": lambda: (X, given)}, batch_size=4, restore=lambda *_: None, **measured)
    with pytest.raises(EvaluationError, match="does not take") as refused:
        evaluate(task, "nowhere")
    assert words in str(refused.value)


def test_a_compiled_metric_that_takes_no_16_bits_has_a_remedy(evaluate):
    """The error is Keras' own, and the line to write is said with it."""
    import keras

    def made():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, activation="softmax", dtype="float16")])
        model.compile(loss="sparse_categorical_crossentropy", metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2)])
        return model

    task = Task(made, {"test": lambda: (X, Y.argmax(-1))}, batch_size=4, restore=lambda *_: None)
    with pytest.raises(Exception, match="InTopK") as refused:
        evaluate(task, "nowhere")
    assert "dtype='float32'" in refused.value.remedy
