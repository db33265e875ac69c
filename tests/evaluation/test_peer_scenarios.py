"""Try how users of `tf_keras.utils.SidecarEvaluator` know it, scenario by scenario of its own tests, written anew.

Its time-out without checkpoints is `nothing_seen` (tests/daemon/test_loop.py). A scenario without counterpart
stands in docs/scripts.md.
"""

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

EXAMPLES, BATCH, INPUTS, OUTPUTS = 1000, 32, 32, 10
STEPS = 32  # of one epoch
KINDS = ("sequential", "subclass")


@pytest.fixture(scope="module")
def keras():
    """Keras 2, whose evaluator it is."""
    import tf_keras

    return tf_keras


@pytest.fixture(scope="module")
def make(keras):
    """Makes a model as the scenarios have it: `compiled` with one metric of one number, and one of two by name."""

    class Subclass(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(OUTPUTS)

        def call(self, x):
            return self.dense(x)

    class TwoNumbers(keras.metrics.MeanSquaredError):
        def result(self):
            number = super().result()
            return {"mean_squared_error_1": number, "mean_squared_error_2": number}

    def model(kind, *, compiled, built):
        made = keras.Sequential([keras.layers.Dense(OUTPUTS)]) if kind == "sequential" else Subclass()
        if compiled:
            made.compile("sgd", "mse", metrics=[keras.metrics.CategoricalAccuracy(), TwoNumbers()])
        if built:
            made.build((None, INPUTS))
        return made

    return model


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(1)
    return random.random((EXAMPLES, INPUTS)), random.random((EXAMPLES, OUTPUTS))


def manage(folder, **parts):
    """Save as a custom training loop does; the checkpoint's path."""
    import tensorflow as tf

    return tf.train.CheckpointManager(tf.train.Checkpoint(**parts), str(folder), max_to_keep=2).save()


def steps(folder):
    """Name and step of each checkpoint that the daemon would find."""
    from catalogs import make_catalog

    from sidecar.system.clock import SystemClock

    catalog = make_catalog(folder, folder / "pins", quiet_seconds=0.0, clock=SystemClock())
    return {each.checkpoint.name: each.checkpoint.step for each in catalog.scan().found}


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_without_iterations(kind, make, keras, data, tmp_path, evaluate):
    """The peer ends with an error; here the number of the save stands for the step, and the metrics are right."""
    import tensorflow as tf

    model = make(kind, compiled=False, built=True)
    path = manage(tmp_path, model=model)
    task = Task(
        lambda: make(kind, compiled=False, built=True),
        {"test": lambda: data},
        metrics=lambda: [keras.metrics.MeanSquaredError(name="mse")],
        batch_size=BATCH,
    )
    assert steps(tmp_path) == {"ckpt-1": 1}
    expected = float(tf.reduce_mean((model(data[0].astype("float32")) - data[1]) ** 2))
    assert evaluate(task, path, ranks=2)["mse"].value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_a_model_without_variables(kind, make, data, tmp_path, evaluate):
    """As the peer's "Nothing to load", but it says which variables are missing."""
    from sidecar.evaluation.failures import EvaluationError

    path = manage(tmp_path, model=make(kind, compiled=False, built=False))
    task = Task(lambda: make(kind, compiled=True, built=False), {"test": lambda: data}, batch_size=BATCH)
    with pytest.raises(EvaluationError) as raised:
        evaluate(task, path)
    assert raised.value.kind == "mismatch"
    assert "kernel" in str(raised.value)


@pytest.mark.nightly
@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("saved_by", ["manager", "callback"])
def test_the_numbers_of_a_trained_model(saved_by, kind, built, make, keras, data, tmp_path, evaluate):
    """All four metrics, the step from the optimizer, and the weights of training."""
    import tensorflow as tf

    trained = make(kind, compiled=True, built=False)
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    if saved_by == "callback":
        path = str(tmp_path / "ckpt-1")
        callback = keras.callbacks.ModelCheckpoint(str(tmp_path / "ckpt-{epoch}"), save_weights_only=True)
        trained.fit(dataset, callbacks=[callback], verbose=0)
    else:
        trained.fit(dataset, verbose=0)
        path = manage(tmp_path, model=trained, optimizer=trained.optimizer)
    built_here = []

    def build_model():
        built_here.append(make(kind, compiled=True, built=built))
        return built_here[-1]

    found = evaluate(Task(build_model, {"test": lambda: data}, batch_size=BATCH), path, ranks=2)
    expected = trained.evaluate(dataset, return_dict=True, verbose=0)
    assert set(expected) == {"loss", "categorical_accuracy", "mean_squared_error_1", "mean_squared_error_2"}
    assert {name: each.value for name, each in found.values["test"].items()} == pytest.approx(expected, rel=1e-6)
    assert steps(tmp_path) == {"ckpt-1": STEPS}
    for model in built_here:
        for own, of_training in zip(model.variables, trained.variables, strict=True):
            assert np.array_equal(own.numpy(), of_training.numpy())


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("functional", "sequential")), "subclass"]
)
def test_the_checkpoints_that_training_found_best(kind, keras, tmp_path, evaluate):
    """`save_best_only` leaves gaps in the names; each that is there is evaluated, with its own numbers."""

    def build_model():
        layers = keras.layers.Dense(5, activation="relu", input_shape=(3,)), keras.layers.Dense(2, activation="softmax")
        if kind == "functional":
            inputs = keras.Input((3,))
            model = keras.Model(inputs, layers[1](layers[0](inputs)))
        elif kind == "sequential":
            model = keras.Sequential(layers)
        else:

            class Own(keras.Model):
                def __init__(self):
                    super().__init__()
                    self.parts = layers

                def call(self, x):
                    return self.parts[1](self.parts[0](x))

            model = Own()
        model.compile("rmsprop", "categorical_crossentropy", metrics=["acc"])
        return model

    random = np.random.default_rng(2)
    x, y = random.normal(size=(20, 3)).astype("float32"), np.eye(2, dtype="float32")[np.arange(20) % 2]
    trained = build_model()
    trained.run_eagerly = True  # a trace takes longer than these few batches
    callback = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "ckpt-{epoch:04d}"), monitor="loss", mode="min", save_best_only=True, save_weights_only=True
    )
    trained.fit(x, y, batch_size=5, callbacks=[callback], epochs=6, verbose=0)
    names = sorted(steps(tmp_path), key=steps(tmp_path).get)
    task = Task(build_model, {"test": lambda: (x, y)}, batch_size=5)
    assert len(names) > 1, "or this test says less"
    evaluated = evaluate(task, *(str(tmp_path / name) for name in names))
    for name, found in zip(names, evaluated, strict=True):
        trained.load_weights(str(tmp_path / name))
        expected = trained.evaluate(x, y, batch_size=5, return_dict=True, verbose=0)
        assert {name: each.value for name, each in found.values["test"].items()} == pytest.approx(expected, rel=1e-5)
        assert found["loss"].goal == "min"
