"""Find the values of a file that a model does not read."""

import importlib

import numpy as np
import pytest
from evaluation.backends.tensorflow.saved_files import restored, stolen, train

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]  # of Keras, while it saves


@pytest.mark.parametrize(
    ("library", "name"),
    [(library, name) for library in ("keras", "tf_keras") for name in ("ckpt", "m.weights.h5", "m.keras")]
    + [("tf_keras", "m.h5")],
)
def test_metrics_that_training_did_not_have(library, name, tmp_path, evaluate):
    """The task's model keeps a metric, as messages on `test_step` ask for: the file has no state of it."""
    import tensorflow as tf

    of = importlib.import_module(library)
    x, y = np.random.default_rng(1).normal(size=(23, 4)).astype("float32"), np.arange(23) % 3

    class Plain(of.Model):
        def __init__(self):
            super().__init__()
            self.out = of.layers.Dense(3, activation="softmax")

        def call(self, x):
            return self.out(x)

    class Measured(Plain):
        def __init__(self):
            super().__init__()
            self.losses_seen = of.metrics.Mean(name="nll")

        def test_step(self, data):
            x, y = data
            self.losses_seen.update_state(of.losses.sparse_categorical_crossentropy(y, self(x, training=False)))
            return {"nll": self.losses_seen.result()}

    def build():
        model = Measured()
        model.compile("adam")
        return model

    trained = Plain()
    predictions = np.asarray(trained(x))
    path = str(tmp_path / name)
    if name == "ckpt":
        tf.train.Checkpoint(trained).write(path)
    else:
        trained.save(path) if name == "m.keras" else trained.save_weights(path)
    found = evaluate(Task(build, {"test": lambda: (x, y)}, batch_size=4), path)
    assert found["nll"].value == pytest.approx(-np.log(predictions[np.arange(23), y]).mean())
    assert not any("build_model" in note for note in found.notes)


def test_metrics_that_the_task_does_not_have(tmp_path):
    """Training of tf_keras keeps metrics with thresholds and matrices in a list; they are no values of the model."""
    import tensorflow as tf
    import tf_keras as of

    class Plain(of.Model):
        def __init__(self):
            super().__init__()
            self.out = of.layers.Dense(3, activation="softmax")

        def call(self, x):
            return self.out(x)

    trained = Plain()
    trained(np.ones((2, 4), "float32"))
    trained.kept = [of.metrics.Precision(), of.metrics.Recall(), of.metrics.MeanIoU(3), of.metrics.TruePositives()]
    trained.kept[2].update_state([0, 1], [0, 1])
    plain = Plain()
    plain(np.ones((2, 4), "float32"))
    assert restored(plain, tf.train.Checkpoint(trained).write(str(tmp_path / "ckpt")))


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.h5"])
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.drawn(1)
def test_what_training_did_not_compile(library, name, tmp_path, evaluate):
    """A loop of its own saves a plain model, the task compiles its own: the file has no states of metrics."""
    of = importlib.import_module(library)
    x, y = np.random.default_rng(1).normal(size=(23, 4)).astype("float32"), np.arange(23) % 3

    def build(*, compiled):
        inputs = of.Input((4,))
        model = of.Model(inputs, of.layers.Dense(3)(inputs))
        if compiled:
            model.compile("adam", of.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        return model

    for compiled in (False, True):
        saved = build(compiled=compiled)
        (saved.save_weights if "weights" in name else saved.save)(tmp_path / name)
        found = evaluate(
            Task(lambda: build(compiled=True), {"test": lambda: (x, y)}, batch_size=4), str(tmp_path / name)
        )
        expected = np.mean(np.argmax(np.asarray(saved(x)), -1) == y)
        assert found["accuracy"].value == pytest.approx(expected)


def test_variables_that_keras_leaves_alone(digits, tmp_path, restore_refusal):
    """A plain tf.Variable is not in Keras' files; Keras says nothing, so it is asked for."""
    model = digits.Scaled()
    model(np.ones((1, 8, 8, 1), "float32"))
    model.save_weights(tmp_path / "m.weights.h5")
    kind, message = restore_refusal(model, tmp_path / "m.weights.h5")
    assert kind == "mismatch"
    assert "1 of 3 variables are not in it" in message


@pytest.mark.parametrize("name", ["m.h5", "m.weights.h5"])
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_values_of_other_files_reach_no_model(package, name, digits, tmp_path, restore_refusal):
    """tf_keras reads them; refused before that, whatever the Keras, and in the task's own `restore` as well."""
    import importlib

    keras = importlib.import_module(package)
    model = train(digits.conv(keras))
    path = tmp_path / name
    model.save_weights(str(path)) if "weights" in name else model.save(str(path))
    stolen(path, tmp_path / "secret")
    if package == "tf_keras":  # else this test proves nothing
        trusting = digits.conv(keras)
        trusting.load_weights(str(path))
        assert any((np.asarray(each) == 7.25).all() for each in trusting.weights)
    loaded = []
    model.load_weights = loaded.append
    kind, message = restore_refusal(model, path)
    assert (kind, loaded) == ("corrupt", [])
    assert str(tmp_path / "secret") in message
