"""List how a file differs from a model, variable by variable."""

import importlib

import pytest
from evaluation.backends.tensorflow.saved_files import train

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]  # of Keras, while it saves


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
@pytest.mark.parametrize("name", ["m.keras", pytest.param("m.weights.h5", marks=pytest.mark.nightly)])
def test_a_file_that_does_not_fit_names_each_variable(package, name, digits, tmp_path, restore_refusal):
    """With both shapes, as for TensorFlow checkpoints; without values, which would be random numbers."""
    of = importlib.import_module(package)
    saved = train(digits.conv(of))
    saved.save(str(tmp_path / name)) if name == "m.keras" else saved.save_weights(str(tmp_path / name))
    kind, message = restore_refusal(digits.conv(of, width=5), tmp_path / name)
    assert kind == "mismatch"
    for part in ("kernel", "is float32 (3, 3, 1, 5) in the model, float32 (3, 3, 1, 4) in the file", "build_model"):
        assert part in message
    assert "[[" not in message
    shallow = of.Sequential([of.layers.Input((8, 8, 1)), of.layers.Flatten(), of.layers.Dense(10), of.layers.Dense(2)])
    kind, message = restore_refusal(shallow, tmp_path / name)
    assert (kind, "is not in the file" in message, "[[" in message) == ("mismatch", True, False)
