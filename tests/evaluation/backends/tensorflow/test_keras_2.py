"""Restore what tf_keras saved, and name the other Keras."""

import importlib

import numpy as np
import pytest
from evaluation.backends.tensorflow.saved_files import restored, train

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]  # of Keras, while it saves


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


def test_tf_keras(digits, tmp_path, restore_refusal):
    """Every file and folder that tf_keras writes, in its models; not in those of Keras 3."""
    import tf_keras

    saved = train(digits.conv(tf_keras))
    expected = [np.asarray(each).tobytes() for each in saved.weights]
    for name in ("m.keras", "m.weights.h5", "m.h5", "folder"):
        saved.save_weights(str(tmp_path / name)) if "weights" in name else saved.save(str(tmp_path / name))
        assert restored(digits.conv(tf_keras), tmp_path / name) == expected, name
    saved.export(str(tmp_path / "export"))
    assert restored(digits.conv(tf_keras), tmp_path / "export") == expected
    assert restore_refusal(digits.conv(tf_keras, width=5), tmp_path / "export")[0] == "mismatch"
    assert restore_refusal(digits.conv(), tmp_path / "folder")[0] == "mismatch"
    assert restore_refusal(digits.conv(tf_keras, width=5), tmp_path / "m.keras")[0] == "mismatch"


@pytest.mark.parametrize(("package", "other"), [("keras", "tf_keras"), ("tf_keras", "keras")])
@pytest.mark.parametrize("name", ["m.keras", "m.h5"])  # a `.weights.h5` says nothing of its writer
def test_a_file_of_the_other_keras_says_so(package, other, name, digits, tmp_path, restore_refusal):
    """With the remedy for `tf.keras`, whose meaning the environment decides, as it is typed."""
    saved = train(digits.conv(importlib.import_module(package)))
    saved.save_weights(str(tmp_path / name)) if "weights" in name else saved.save(str(tmp_path / name))
    kind, message = restore_refusal(digits.conv(importlib.import_module(other), width=5), tmp_path / name)
    assert kind == "mismatch"
    writer = "Keras 3" if package == "keras" else "Keras 2 (tf_keras)"
    assert f"It was saved by {writer}" in message
    assert "TF_USE_LEGACY_KERAS" in message
