"""Where numbers differ from Keras on purpose the result says so; what only rounds is not refused."""

import importlib

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

X = np.random.default_rng(1).normal(size=(23, 3)).astype("float32")
Y = np.random.default_rng(2).integers(0, 2, 23)


def build(of, **compiled):
    model = of.Sequential([of.Input((3,)), of.layers.Dense(2, activation="softmax", kernel_initializer="ones")])
    if compiled:
        model.compile(**compiled)
    return model


def task(model, *arrays, **changes):
    return Task(model, {"test": lambda: arrays}, batch_size=4, restore=lambda *_: None, **changes)


def test_a_compiled_model_of_low_precision_is_no_mean_over_batches(evaluate):
    """The loss of a batch is rounded to 8 bits, and that of its halves another way."""
    import tf_keras

    def made():
        model = tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(2, activation="softmax")])
        model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        found = evaluate(task(made, X * 3, Y), "nowhere")
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    assert found.notes == ()
    assert found["loss"].value > 0


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_huge_weights_are_no_reason_to_refuse(evaluate, library):
    """Differences of their sums are large numbers, and still roundings."""
    of = importlib.import_module(library)
    weights = (np.random.default_rng(3).random(23) * 1e30).astype("float32")

    def made():
        auc = of.metrics.AUC(name="auc")
        return of.Sequential([of.Input((3,)), of.layers.Dense(1, activation="sigmoid", kernel_initializer="ones")]), auc

    model, auc = made()
    auc.update_state(Y[:, None], model(X), sample_weight=weights)
    metrics = lambda: [of.metrics.AUC(name="auc")]  # noqa: E731
    found = evaluate(task(lambda: made()[0], X, Y[:, None], weights, metrics=metrics), "nowhere", ranks=2)
    assert found["auc"].value == pytest.approx(float(auc.result()), rel=1e-4)


@pytest.mark.filterwarnings("ignore:You are passing weight")
def test_counts_beyond_64_bits_are_told_by_name(evaluate):
    """One sentence, no overflow."""
    import keras

    from sidecar.evaluation.failures import EvaluationError

    def made():
        classes = keras.layers.Lambda(lambda x: keras.ops.argmax(x, -1))
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), classes])

    weights = np.full(23, 1e30, "float32")
    with pytest.raises(EvaluationError) as caught:
        evaluate(task(made, X, Y, weights, metrics=lambda: [keras.metrics.MeanIoU(2, name="iou")]), "nowhere")
    assert caught.value.kind == "task_error"
    assert "metric 'iou' (MeanIoU) counts in whole numbers" in str(caught.value)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_total_weight_of_0_is_told(evaluate, library):
    """There is no mean of nothing; Keras says 0, which would be the best loss of all."""
    of = importlib.import_module(library)
    nothing = np.zeros(23, "float32")

    def made():
        return build(of, loss="sparse_categorical_crossentropy", weighted_metrics=["accuracy"])

    found = evaluate(task(made, X, Y, nothing), "nowhere", ranks=2)
    name = next(name for name in found.values["test"] if name.endswith("accuracy"))
    assert found[name].hex == "nan"
    assert any(f"{name}: the total weight is 0" in note for note in found.notes)
    assert found["loss"].value == 0


def test_losses_by_output_are_told(evaluate):
    """Keras 3 takes the mean over batches of different sizes."""
    import keras

    def made():
        x = keras.Input((3,))
        outputs = {name: keras.layers.Dense(2, activation="softmax", name=name)(x) for name in "ab"}
        model = keras.Model(x, outputs)
        model.compile(loss=dict.fromkeys("ab", "sparse_categorical_crossentropy"))
        return model

    found = evaluate(task(made, X, {"a": Y, "b": Y}), "nowhere")
    assert any("a_loss, b_loss: all examples count alike" in note for note in found.notes)


@pytest.mark.parametrize(("reduction", "words"), [("none", "size squared"), ("mean_with_sample_weight", "Σ w·l / Σ w")])
def test_reductions_that_differ_are_told(evaluate, reduction, words):
    """Tell losses of `Task(loss=…)`."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(reduction=reduction)
    weights = np.random.default_rng(3).random(23).astype("float32")
    found = evaluate(task(lambda: build(keras), X, Y, weights, loss=loss), "nowhere")
    assert any(words in note for note in found.notes)
