"""What Keras 3, tf_keras and TensorFlow save beside object checkpoints is restored to the bit, weights only."""

import importlib
import os
import random
import shutil
import signal

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]  # of Keras, while it saves


def train(model):
    """Other values than at first, in statistics and optimizer too."""
    import tensorflow as tf

    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)  # one batch is not worth a trace
    model.fit(np.ones((8, 8, 8, 1), "float32"), np.zeros(8), verbose=0)
    for variable in model.weights:
        variable.assign(tf.random.stateless_uniform(variable.shape, (1, 2), dtype="float32") + 1.0)
    return model


@pytest.fixture
def refusal():
    def run(model, path):
        from sidecar.evaluation.backends.tensorflow.restore import restore
        from sidecar.evaluation.failures import EvaluationError

        with pytest.raises(EvaluationError) as caught:
            restore(model, str(path), None)
        return caught.value.kind, str(caught.value)

    return run


def restored(model, path):
    from sidecar.evaluation.backends.tensorflow.restore import restore

    restore(model, str(path), None)
    return [np.asarray(each).tobytes() for each in model.weights]


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


def test_a_network_within_a_metric(tmp_path):
    """Its values are those of an object checkpoint of tf_keras, as with `load_weights`."""
    import tensorflow as tf
    import tf_keras as of

    class Distance(of.metrics.Mean):
        def __init__(self):
            super().__init__(name="distance")
            self.encoder = of.Sequential([of.layers.Input((4,)), of.layers.Dense(2)])

    class Measured(of.Model):
        def __init__(self):
            super().__init__()
            self.out = of.layers.Dense(3)
            self.distance = Distance()

        def call(self, x):
            return self.out(x)

        @property
        def metrics(self):
            return [self.distance]

    saved, model = Measured(), Measured()
    for each in (saved, model):
        each(np.ones((2, 4), "float32"))
    restored(model, tf.train.Checkpoint(saved).write(str(tmp_path / "ckpt")))
    assert np.array_equal(model.distance.encoder.get_weights()[0], saved.distance.encoder.get_weights()[0])


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


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.h5"])
def test_mixed_precision_of_keras_2(name, tmp_path):
    """A compiled model has an optimizer that wraps another, on which `load_weights` of tf_keras stumbles."""
    import tf_keras

    def build():
        policy = tf_keras.mixed_precision.Policy("mixed_float16")
        inputs = tf_keras.Input((4,))
        model = tf_keras.Model(inputs, tf_keras.layers.Dense(3, dtype=policy)(inputs))
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.RMSprop())
        model.compile(optimizer, "mse", run_eagerly=True)
        return model

    saved = build()
    saved.fit(np.ones((8, 4), "float32"), np.ones((8, 3), "float32"), verbose=0)
    (saved.save_weights if "weights" in name else saved.save)(tmp_path / name)
    model = build()
    compiled = model.optimizer
    assert restored(model, tmp_path / name) == [np.asarray(each).tobytes() for each in saved.weights]
    assert model.optimizer is compiled


def test_keras_3(digits, tmp_path, refusal):
    """Every file and folder that Keras 3 writes; and what does not fit, is damaged or is gone."""
    import tensorflow as tf

    saved = train(digits.conv())
    expected = [np.asarray(each).tobytes() for each in saved.weights]
    saved.save(tmp_path / "m.keras")
    saved.save_weights(tmp_path / "m.weights.h5")
    saved.save_weights(tmp_path / "s.weights.json", max_shard_size=7e-6)
    saved.save(tmp_path / "m.h5")
    saved.export(tmp_path / "export", verbose=False)
    tf.saved_model.save(saved, str(tmp_path / "saved_model"))
    tf.train.Checkpoint(model=saved).write(str(tmp_path / "prefix"))
    (tmp_path / "prefix").mkdir()
    for name in ("m.keras", "m.weights.h5", "s.weights.json", "m.h5", "export", "saved_model"):
        assert restored(digits.conv(), tmp_path / name) == expected, name
    assert len(list(tmp_path.glob("s_*.weights.h5"))) > 1

    for name in ("m.keras", "m.weights.h5", "s.weights.json", "m.h5", "export", "saved_model"):
        kind, message = refusal(digits.conv(width=5), tmp_path / name)
        assert kind == "mismatch", (name, message)
    assert refusal(digits.dense(), tmp_path / "m.weights.h5")[0] == "mismatch"
    kind, message = refusal(digits.conv(), tmp_path / "prefix")
    assert (kind, "move one of them" in message) == ("mismatch", True)
    (tmp_path / "m.keras").write_bytes((tmp_path / "m.keras").read_bytes()[:5000])
    assert refusal(digits.conv(), tmp_path / "m.keras")[0] == "corrupt"
    (tmp_path / "m.h5").write_bytes((tmp_path / "m.h5").read_bytes()[:5000])
    assert refusal(digits.conv(), tmp_path / "m.h5")[0] == "corrupt"
    shutil.rmtree(tmp_path / "export" / "variables")
    assert refusal(digits.conv(), tmp_path / "export")[0] == "vanished"
    assert refusal(digits.conv(), tmp_path / "gone.keras")[0] == "vanished"


def test_variables_that_keras_leaves_alone(digits, tmp_path, refusal):
    """A plain tf.Variable is not in Keras' files; Keras says nothing, so it is asked for."""
    model = digits.Scaled()
    model(np.ones((1, 8, 8, 1), "float32"))
    model.save_weights(tmp_path / "m.weights.h5")
    kind, message = refusal(model, tmp_path / "m.weights.h5")
    assert kind == "mismatch"
    assert "1 of 3 variables are not in it" in message


def test_no_code_of_a_file_is_run(digits, tmp_path):
    """A Lambda layer in the archive's configuration is not looked at: only weights are."""
    import keras

    marker = tmp_path / "ran"
    touch = eval(f"lambda x: (__import__('pathlib').Path({str(marker)!r}).touch(), x)[1]")
    layers = [keras.layers.Input((8, 8, 1)), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Lambda(touch), keras.layers.Dense(10)])
    model.save(tmp_path / "m.keras")
    marker.unlink()
    from sidecar.evaluation.backends.tensorflow.restore import restore

    plain = keras.Sequential([*layers, keras.layers.Lambda(lambda x: x), keras.layers.Dense(10)])
    restore(plain, str(tmp_path / "m.keras"), None)
    assert [each.tobytes() for each in plain.get_weights()] == [each.tobytes() for each in model.get_weights()]
    assert not marker.exists()
    del digits


def test_tf_keras(digits, tmp_path, refusal):
    """Every file and folder that tf_keras writes, in its models; not in those of Keras 3."""
    import tf_keras

    saved = train(digits.conv(tf_keras))
    expected = [np.asarray(each).tobytes() for each in saved.weights]
    for name in ("m.keras", "m.weights.h5", "m.h5", "folder"):
        saved.save_weights(str(tmp_path / name)) if "weights" in name else saved.save(str(tmp_path / name))
        assert restored(digits.conv(tf_keras), tmp_path / name) == expected, name
    saved.export(str(tmp_path / "export"))
    assert restored(digits.conv(tf_keras), tmp_path / "export") == expected
    assert refusal(digits.conv(tf_keras, width=5), tmp_path / "export")[0] == "mismatch"
    assert refusal(digits.conv(), tmp_path / "folder")[0] == "mismatch"
    assert refusal(digits.conv(tf_keras, width=5), tmp_path / "m.keras")[0] == "mismatch"


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
@pytest.mark.parametrize("name", ["m.keras", pytest.param("m.weights.h5", marks=pytest.mark.nightly)])
def test_a_file_that_does_not_fit_names_each_variable(package, name, digits, tmp_path, refusal):
    """With both shapes, as for TensorFlow checkpoints; without values, which would be random numbers."""
    import importlib

    of = importlib.import_module(package)
    saved = train(digits.conv(of))
    saved.save(str(tmp_path / name)) if name == "m.keras" else saved.save_weights(str(tmp_path / name))
    kind, message = refusal(digits.conv(of, width=5), tmp_path / name)
    assert kind == "mismatch"
    for part in ("kernel", "is float32 (3, 3, 1, 5) in the model, float32 (3, 3, 1, 4) in the file", "build_model"):
        assert part in message
    assert "[[" not in message
    shallow = of.Sequential([of.layers.Input((8, 8, 1)), of.layers.Flatten(), of.layers.Dense(10), of.layers.Dense(2)])
    kind, message = refusal(shallow, tmp_path / name)
    assert (kind, "is not in the file" in message, "[[" in message) == ("mismatch", True, False)


@pytest.mark.parametrize(("package", "other"), [("keras", "tf_keras"), ("tf_keras", "keras")])
@pytest.mark.parametrize("name", ["m.keras", "m.h5"])  # a `.weights.h5` says nothing of its writer
def test_a_file_of_the_other_keras_says_so(package, other, name, digits, tmp_path, refusal):
    """With the remedy for `tf.keras`, whose meaning the environment decides, as it is typed."""
    import importlib

    saved = train(digits.conv(importlib.import_module(package)))
    saved.save_weights(str(tmp_path / name)) if "weights" in name else saved.save(str(tmp_path / name))
    kind, message = refusal(digits.conv(importlib.import_module(other), width=5), tmp_path / name)
    assert kind == "mismatch"
    writer = "Keras 3" if package == "keras" else "Keras 2 (tf_keras)"
    assert f"It was saved by {writer}" in message
    assert "TF_USE_LEGACY_KERAS" in message


def stolen(path, secret):
    """The first values of an HDF5 file are now those of another file, by external storage."""
    import h5py

    with h5py.File(path, "r+") as file:
        found = []
        file.visititems(lambda name, each: found.append(name) if getattr(each, "shape", ()) else None)
        shape, dtype = file[found[0]].shape, file[found[0]].dtype
        secret.write_bytes(np.full(shape, 7.25, dtype).tobytes())
        del file[found[0]]
        file.create_dataset(found[0], shape, dtype, external=[(str(secret), 0, secret.stat().st_size)])


@pytest.mark.parametrize("name", ["m.h5", "m.weights.h5"])
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_values_of_other_files_reach_no_model(package, name, digits, tmp_path, refusal):
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
    kind, message = refusal(model, path)
    assert (kind, loaded) == ("corrupt", [])
    assert str(tmp_path / "secret") in message


def damaged(content, seed):
    """One to eight bytes are others, more of them where metadata lie."""
    choose, changed = random.Random(seed), bytearray(content)
    for _ in range(choose.choice((1, 2, 8))):
        at = choose.randrange(choose.choice((len(changed), min(4096, len(changed)))))
        new = choose.choice((choose.randbytes(1), bytes(8), b"\xff" * 8))
        changed[at : at + len(new)] = new[: len(changed) - at]
    return bytes(changed)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["m.h5", "m.weights.h5", "m.keras"])
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_damage_is_never_the_tasks_fault(package, name, digits, tmp_path, monkeypatch):
    """It changes values, as nothing can tell; or it is the file's, or does not fit; in one sentence of no traceback."""
    import importlib

    from sidecar.evaluation import hdf5
    from sidecar.evaluation.backends.tensorflow.restore import restore
    from sidecar.evaluation.failures import EvaluationError

    monkeypatch.setattr(hdf5, "_CPU_SECONDS", 2)
    model = train(digits.conv(importlib.import_module(package)))
    path = tmp_path / name
    model.save_weights(str(path)) if "weights" in name else model.save(str(path))
    content, ends, said = path.read_bytes(), [], []
    for seed in range(25):
        path.write_bytes(damaged(content, seed))
        try:
            restore(model, str(path), None)
        except EvaluationError as error:
            ends.append(error.kind)
            said.append(str(error))
    assert not any("\n" in each for each in said)
    assert set(ends) <= {"corrupt", "mismatch"}
    assert ends.count("corrupt") >= 3
    path.write_bytes(content)
    restore(model, str(path), None)


def test_damaged_values_are_told_from_a_model_that_does_not_fit(digits, tmp_path, refusal):
    """Keras says of both that layers could not be loaded; a read of all values tells them apart."""
    import h5py

    model = train(digits.conv())
    model.save_weights(tmp_path / "m.weights.h5")
    with h5py.File(tmp_path / "m.weights.h5", "r+") as file:
        found = []
        file.visititems(lambda name, each: found.append(name) if getattr(each, "shape", ()) else None)
        values = file[found[0]][()]
        del file[found[0]]
        data = file.create_dataset(found[0], data=values, chunks=values.shape, compression="gzip")
        at = data.id.get_chunk_info(0)
    content = bytearray((tmp_path / "m.weights.h5").read_bytes())
    content[at.byte_offset : at.byte_offset + at.size] = b"\xff" * at.size
    (tmp_path / "m.weights.h5").write_bytes(content)
    assert refusal(model, tmp_path / "m.weights.h5")[0] == "corrupt"


def test_a_child_that_is_killed_is_not_the_files_fault():
    """By somebody, or for want of memory; what it does to itself is."""
    from sidecar.evaluation import isolation
    from sidecar.evaluation.failures import EvaluationError

    ends = {signal.SIGKILL: "out_of_memory", signal.SIGSEGV: "corrupt", signal.SIGABRT: "corrupt"}
    for number, kind in ends.items():
        with pytest.raises(EvaluationError) as caught:
            isolation.check_isolated("m.h5", lambda number=number: os.kill(os.getpid(), number), cpu_seconds=5)
        assert caught.value.kind == kind
    with pytest.raises(EvaluationError, match="CPU time limit") as caught:
        isolation.check_isolated("m.h5", lambda: sum(iter(int, 1)), cpu_seconds=1)
    assert caught.value.kind == "corrupt"
    isolation.check_isolated("m.h5", lambda: None, cpu_seconds=1)
