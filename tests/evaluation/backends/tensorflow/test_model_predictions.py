"""Predictions that a task keeps, joined again: they and the saved states are what the published numbers are made of."""

import numpy as np
import pytest
from evaluation.backends.tensorflow.saved_columns import losses

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.nightly), 3, pytest.param(14, marks=pytest.mark.nightly)]
)
def test_joined_predictions_reproduce_the_published_numbers(trained, digits, evaluated, ranks):
    """A count exactly, a loss to rounding, states to the bit; one of 14 ranks has no batch."""
    published, found = evaluated(digits.make(digits.Subclassed, predictions=True), trained.path("subclassed"), ranks)
    kept = found.predictions["test"]
    assert list(kept) == ["place", "y", "predictions"]
    x, y = digits.held_out_arrays()
    assert np.array_equal(kept["y"], y)
    assert kept["predictions"].dtype == np.float32
    assert published["accuracy"].value == float((kept["predictions"].argmax(axis=1) == y).sum()) / len(y)
    assert published["loss"].value == pytest.approx(losses(y, kept["predictions"]).mean(), rel=1e-7)
    del x


def test_weights_of_examples_are_kept(trained, digits, evaluated):
    """Without them a weighted number could not be made again."""
    task = digits.make(digits.Subclassed, {"test": digits.weighted}, predictions=True)
    published, found = evaluated(task, trained.path("subclassed"), 2)
    kept = found.predictions["test"]
    assert np.array_equal(kept["weights"], digits.weights_of(kept["y"]))
    single = losses(kept["y"], kept["predictions"]) * kept["weights"]
    assert published["loss"].value == pytest.approx(single.mean(), rel=1e-7)
    assert published["loss_weighted_mean"].value == pytest.approx(single.sum() / kept["weights"].sum(), rel=1e-7)


def test_weights_saved_beside_the_evaluation_are_those_restored(trained, digits, evaluated):
    """Every worker's own folder holds them."""
    import tensorflow as tf

    _, found = evaluated(digits.make(), trained.path("model"), 2)
    expected = digits.conv()
    tf.train.Checkpoint(model=expected).restore(trained.path("model")).expect_partial()
    for worker in found.workers:
        model = digits.conv()
        tf.train.Checkpoint(model=model).restore(str(worker / "weights"))
        for one, other in zip(model.weights, expected.weights, strict=True):
            assert np.array_equal(one, other)
    assert found.predictions == {}


@pytest.mark.parametrize(("says", "remedy"), [("No space left on device", "make room"), ("Input/output error", None)])
def test_a_disk_that_is_full_is_no_lack_of_memory(trained, digits, evaluated, monkeypatch, says, remedy):
    """TensorFlow says ResourceExhausted of both."""
    import tensorflow as tf

    from sidecar.evaluation.failures import EvaluationError

    def write(*_):
        raise tf.errors.ResourceExhaustedError(None, None, f"weights.data; {says}")

    monkeypatch.setattr(tf.train.Checkpoint, "write", write)
    with pytest.raises(EvaluationError, match=rf"weights\.data; {says}") as caught:
        evaluated(digits.make(), trained.path("model"), 1)
    assert caught.value.kind == "storage"
    assert ("free some space there" in str(caught.value)) == (remedy is not None)


def test_a_compiled_model_is_asked_for_its_predictions(trained, digits, evaluated):
    """Its own test_step does not show them."""
    task = digits.make(digits.compiled, metrics=None, loss=None, predictions=True)
    published, found = evaluated(task, trained.path("model"), 1)
    kept = found.predictions["test"]
    assert published["accuracy"].value == float((kept["predictions"].argmax(axis=1) == kept["y"]).sum()) / len(
        kept["y"]
    )


def test_several_outputs_are_several_columns(digits, evaluated, tmp_path):
    """Named as Keras names their metrics."""
    import keras
    import tensorflow as tf

    def build():
        image = keras.Input((8, 8, 1))
        flat = keras.layers.Flatten()(image)
        return keras.Model(image, {"digit": keras.layers.Dense(10)(flat), "odd": keras.layers.Dense(1)(flat)})

    def source():
        return digits.held_out().map(lambda x, y: (x, {"digit": y, "odd": y % 2}))

    task = digits.make(
        build,
        {"test": source},
        metrics=lambda: {"digit": digits.accuracy()},
        loss={"digit": digits.SCCE(from_logits=True), "odd": keras.losses.BinaryCrossentropy(from_logits=True)},
        predictions=True,
    )
    published, found = evaluated(task, tf.train.Checkpoint(model=build()).write(str(tmp_path / "ckpt")), 2)
    kept = found.predictions["test"]
    assert list(kept) == ["place", "y_digit", "y_odd", "predictions_digit", "predictions_odd"]
    hits = (kept["predictions_digit"].argmax(axis=1) == kept["y_digit"]).sum()
    assert published["digit_accuracy"].value == float(hits) / digits.HELD_OUT


def test_sequences_of_one_length_with_what_the_model_masks(digits, evaluated, tmp_path):
    """Rows of any shape; positions that do not count are told."""
    import keras
    import tensorflow as tf

    def build():
        return keras.Sequential([keras.layers.Input((5,), dtype="int32"), keras.layers.Embedding(9, 4, mask_zero=True)])

    words = np.random.default_rng(1).integers(0, 4, (11, 5)).astype("int32")
    task = digits.make(build, {"test": lambda: (words, words % 4)}, metrics=None, batch_size=3, predictions=True)
    _, found = evaluated(task, tf.train.Checkpoint(model=build()).write(str(tmp_path / "ckpt")), 2)
    kept = found.predictions["test"]
    assert kept["predictions"].shape == (11, 5, 4)
    assert np.array_equal(kept["mask"], words != 0)
