"""What Keras 3, tf_keras and TensorFlow save beside object checkpoints is restored to the bit, weights only."""

import shutil

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]  # of Keras, while it saves


def train(model):
    """Other values than at first, in statistics and optimizer too."""
    import tensorflow as tf

    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(np.ones((8, 8, 8, 1), "float32"), np.zeros(8), verbose=0)
    for variable in model.weights:
        variable.assign(tf.random.stateless_uniform(variable.shape, (1, 2), dtype="float32") + 1.0)
    return model


@pytest.fixture
def refusal():
    def run(model, path):
        from sidecar.worker.failures import EvaluationError
        from sidecar.worker.tensorflow.restore import restore

        with pytest.raises(EvaluationError) as caught:
            restore(model, str(path), None)
        return caught.value.kind, str(caught.value)

    return run


def restored(model, path):
    from sidecar.worker.tensorflow.restore import restore

    restore(model, str(path), None)
    return [np.asarray(each).tobytes() for each in model.weights]


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
    from sidecar.worker.tensorflow.restore import restore

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
