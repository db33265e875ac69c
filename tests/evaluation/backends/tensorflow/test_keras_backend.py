"""Models of Keras 3 that were trained with JAX or PyTorch are evaluated with TensorFlow, and the result says so."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

TRAIN = """
import json, sys
import keras, numpy as np
generator = np.random.default_rng(7)
x, y = generator.normal(size=(103, 12)).astype("float32"), generator.integers(0, 3, 103)
inputs = keras.Input((12,))
hidden = keras.layers.BatchNormalization()(keras.layers.Dense(24, activation="gelu", name="hidden")(inputs))
model = keras.Model(inputs, keras.layers.Dense(3, name="out")(keras.layers.Dropout(0.2)(hidden)))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
model.fit(x, y, epochs=2, verbose=0)
model.save("m.keras")
model.save_weights("m.weights.h5")
json.dump(model.evaluate(x, y, batch_size=10, verbose=0, return_dict=True), open("truth.json", "w"))
"""


@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=pytest.mark.nightly)])
@pytest.mark.drawn(1)
def test_the_numbers_are_those_of_the_other_backend(backend, tmp_path, evaluate):
    """Files that Keras wrote under another backend give its own numbers up to rounding, with any number of ranks."""
    import keras

    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", TRAIN], cwd=tmp_path, env=environment, check=True, timeout=600)
    truth = json.loads((tmp_path / "truth.json").read_text())
    generator = np.random.default_rng(7)
    x, y = generator.normal(size=(103, 12)).astype("float32"), generator.integers(0, 3, 103)

    def build():
        inputs = keras.Input((12,))
        hidden = keras.layers.BatchNormalization()(keras.layers.Dense(24, activation="gelu", name="hidden")(inputs))
        model = keras.Model(inputs, keras.layers.Dense(3, name="out")(keras.layers.Dropout(0.2)(hidden)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
        return model

    paths = [str(tmp_path / name) for name in ("m.keras", "m.weights.h5")]
    found = [evaluate(Task(build, {"test": lambda: (x, y)}, batch_size=10), *paths, ranks=ranks) for ranks in (1, 2, 3)]
    for by_file in zip(*found, strict=True):
        assert by_file[0].hexes == by_file[1].hexes == by_file[2].hexes
        assert by_file[0]["loss"].value == pytest.approx(truth["loss"], rel=1e-6)
        assert by_file[0]["accuracy"].value == pytest.approx(truth["accuracy"], rel=1e-6)


def test_a_result_names_the_backend_of_training(digits, trained, evaluate, monkeypatch):
    """Readers of a result see which library computed it; models of tf_keras have no other backend."""
    from sidecar.evaluation.backends.tensorflow import keras_backend
    from sidecar.evaluation.backends.tensorflow.traits import KERAS_BACKEND_OF_TRAINING

    assert keras_backend.other_backend() is None
    monkeypatch.setenv(KERAS_BACKEND_OF_TRAINING, "jax")
    assert keras_backend.other_backend() == "jax"
    monkeypatch.setenv("KERAS_BACKEND", "torch")  # as a task's file may do, too late
    assert keras_backend.other_backend() == "torch"
    found = evaluate(digits.make(), trained.path("model"))
    assert "Keras computes with torch in training (KERAS_BACKEND), and with TensorFlow here" in found.notes[-1]
    with pytest.MonkeyPatch.context() as unset:
        unset.setenv("KERAS_BACKEND", "tensorflow")
        unset.delenv(KERAS_BACKEND_OF_TRAINING)
        assert keras_backend.notes_on(digits.conv()) == ()


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_layer_that_needs_the_other_backend(backend, is_named):
    """A layer with functions of JAX or PyTorch: the sentence names both libraries, and how to choose the other."""
    import keras

    from sidecar.evaluation.backends.tensorflow.keras_backend import explained
    from sidecar.evaluation.failures import EvaluationError

    class Squash(keras.layers.Layer):
        def call(self, x):
            if backend == "jax":
                import jax.numpy as jnp

                return jnp.tanh(x)
            import torch

            return torch.tanh(x)

    with pytest.raises(EvaluationError, match="with TensorFlow") as caught, explained(backend if is_named else None):
        keras.Sequential([keras.Input((4,)), Squash()])
    message = str(caught.value)
    assert f"although training computes with {backend}" in message
    assert f'framework = "python" and worker_env = {{ KERAS_BACKEND = "{backend}" }}' in message
    assert "\x1b" not in message


def test_errors_of_the_task_itself_stay_as_they_are():
    """Neither a failure whose cause is known nor an error of the user's code is put down to the backend."""
    from sidecar.evaluation.backends.tensorflow.keras_backend import explained
    from sidecar.evaluation.failures import EvaluationError

    with pytest.raises(EvaluationError, match="known"), explained("jax"):
        raise EvaluationError("mismatch", "known")
    with pytest.raises(ZeroDivisionError), explained(None):
        raise ZeroDivisionError
