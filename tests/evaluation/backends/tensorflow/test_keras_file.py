"""Restore what Keras 3, tf_keras and TensorFlow save beside object checkpoints to the bit, weights only."""

import importlib
import shutil

import numpy as np
import pytest
from evaluation.backends.tensorflow.saved_files import damaged, restored, train

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]  # of Keras, while it saves


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


def test_keras_3(digits, tmp_path, restore_refusal):
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
        kind, message = restore_refusal(digits.conv(width=5), tmp_path / name)
        assert kind == "mismatch", (name, message)
    assert restore_refusal(digits.dense(), tmp_path / "m.weights.h5")[0] == "mismatch"
    kind, message = restore_refusal(digits.conv(), tmp_path / "prefix")
    assert (kind, "move one of them" in message) == ("mismatch", True)
    (tmp_path / "m.keras").write_bytes((tmp_path / "m.keras").read_bytes()[:5000])
    assert restore_refusal(digits.conv(), tmp_path / "m.keras")[0] == "corrupt"
    (tmp_path / "m.h5").write_bytes((tmp_path / "m.h5").read_bytes()[:5000])
    assert restore_refusal(digits.conv(), tmp_path / "m.h5")[0] == "corrupt"
    shutil.rmtree(tmp_path / "export" / "variables")
    assert restore_refusal(digits.conv(), tmp_path / "export")[0] == "vanished"
    assert restore_refusal(digits.conv(), tmp_path / "gone.keras")[0] == "vanished"


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


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["m.h5", "m.weights.h5", "m.keras"])
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_damage_is_never_the_tasks_fault(package, name, digits, tmp_path, monkeypatch):
    """It changes values, as nothing can tell; or it is the file's, or does not fit; in one sentence of no traceback."""
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


def test_damaged_values_are_told_from_a_model_that_does_not_fit(digits, tmp_path, restore_refusal):
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
    assert restore_refusal(model, tmp_path / "m.weights.h5")[0] == "corrupt"


@pytest.mark.parametrize("name", ["m.weights.h5", "m.keras"])
def test_weights_of_another_precision_are_noted(digits, tmp_path, name):
    """Keras converts them; bfloat16, which HDF5 lacks, is told from float16."""
    del digits
    import keras

    from sidecar.evaluation.backends.tensorflow.restore import restore

    def model(dtype):
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype=dtype, name="d")])

    for stored, used in (("float16", "float32"), ("bfloat16", "float32"), ("float32", "float16")):
        saved = model(stored)
        path = str(tmp_path / f"{stored}-{name}")
        (saved.save if name.endswith(".keras") else saved.save_weights)(path)
        assert f"stored as {stored} and evaluated as {used}" in restore(model(used), path, None).notes[-1]
        assert not any("stored as" in note for note in restore(model(stored), path, None).notes)
