"""Weights from what `keras.callbacks.OrbaxCheckpoint` saved, or a sentence that says why not."""

import json
import shutil
import sys

import numpy as np
import pytest
from orbax_training import needs_orbax, trained_once

from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.tensorflow, needs_orbax]


@pytest.fixture(scope="session")
def trained(made_once):
    """Return a folder with the checkpoint `2`, and the weights that the checkpoint must hold."""
    folder = trained_once(made_once)
    return folder / "saves", json.loads((folder / "weights.json").read_text())


@pytest.fixture
def saved(trained, tmp_path):
    """A copy of it, in a folder whose name means something else in a URL."""
    there = tmp_path / "epoch_1%2F?x"
    shutil.copytree(trained[0] / "2", there / "2")
    return there / "2"


@pytest.fixture
def build():
    """The model that was trained; with other names, or another layer, if a test says so."""
    import keras

    def make(units=16, *, compiled=False, first="dense", last="dense_1"):
        inputs = keras.Input((8,))
        hidden = keras.layers.Dense(units, activation="relu", name=first)(inputs)
        hidden = keras.layers.BatchNormalization(name="batch_normalization")(hidden)
        model = keras.Model(inputs, keras.layers.Dense(2, name=last)(keras.layers.Dropout(0.5)(hidden)))
        if compiled:
            model.compile("adam", "mse")
        return model

    return make


def load(model, path, make_root=None):
    from sidecar.evaluation.backends.tensorflow.restore import restore

    restore(model, str(path), make_root)


def refusal(model, path, make_root=None):
    with pytest.raises(EvaluationError) as caught:
        load(model, path, make_root)
    return caught.value.kind, str(caught.value)


@pytest.mark.parametrize("compiled", [False, True])
def test_every_weight_is_restored(saved, trained, build, compiled):
    """To the bit, also into a model that nobody compiled; frozen layers as well."""
    model = build(compiled=compiled)
    model.layers[1].trainable = False
    load(model, saved)
    assert {each.path: np.asarray(each).tolist() for each in model.weights} == trained[1]
    assert "orbax.checkpoint" not in sys.modules  # it would start JAX, which takes the GPUs


def test_other_models(saved, build):
    """Names and shapes are compared; the message has both sides."""
    kind, message = refusal(build(first="other"), saved)
    assert kind == "mismatch"
    assert "2 of 8 variables are not in it: other/kernel, other/bias" in message
    assert "dense/kernel" in message
    kind, message = refusal(build(units=4), saved)
    assert kind == "mismatch"
    assert "dense/kernel is float32 (8, 4) in the model, float32 (8, 16)" in message


def test_a_leaf_without_keys_is_left_out(saved, build):
    """The message lists the variables that the checkpoint has, and a leaf at the root of the tree is not one."""
    metadata = saved / "pytree" / "_METADATA"
    content = json.loads(metadata.read_text())
    content["tree_metadata"]["()"] = {"key_metadata": []}
    metadata.write_text(json.dumps(content))
    kind, message = refusal(build(first="other"), saved)
    assert kind == "mismatch"
    assert "dense/kernel" in message


def test_a_group_without_variables_is_no_value(saved, build):
    """Orbax notes an empty dict, such as the other variables of a model of `Dense` layers."""
    metadata = saved / "pytree" / "_METADATA"
    content = json.loads(metadata.read_text())
    group = [{"key": "non_trainable_variables", "key_type": 2}]
    empty = {"value_type": "Dict", "skip_deserialize": True}
    content["tree_metadata"]["('non_trainable_variables',)"] = {"key_metadata": group, "value_metadata": empty}
    metadata.write_text(json.dumps(content))
    model = build()
    load(model, saved)
    assert model.get_layer("dense").kernel.numpy().any()


def test_where_tensorstore_is_not_installed(saved, build, monkeypatch):
    """One sentence: what is missing, for which interpreter, and what to do."""
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    kind, message = refusal(build(), saved)
    assert kind == "task_error"
    assert sys.executable in message
    assert "pip install orbax-checkpoint" in message
    assert "\n" not in message


def test_places_and_other_kerases(saved, build):
    """Neither has a meaning here."""
    import tensorflow as tf
    import tf_keras

    kind, message = refusal(build(), saved, lambda model: tf.train.Checkpoint(net=model))
    assert (kind, "remove it" in message) == ("mismatch", True)
    kind, message = refusal(tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(8,))]), saved)
    assert (kind, "Keras 3" in message) == ("mismatch", True)


def test_checkpoints_that_keras_did_not_write(saved, build):
    """They are named, and the way out is."""
    metadata = saved / "pytree" / "_METADATA"
    known = json.loads(metadata.read_text())
    tree = {"('params', 'w')": {"key_metadata": [{"key": "params", "key_type": 2}, {"key": "w", "key_type": 2}]}}
    for content, why in (
        (known | {"tree_metadata": tree}, "its tree has params"),
        (known | {"use_ocdbt": False}, "without OCDBT"),
    ):
        metadata.write_text(json.dumps(content))
        kind, message = refusal(build(), saved)
        assert kind == "mismatch"
        assert why in message
        assert "Task(restore=…)" in message
    metadata.unlink()
    kind, message = refusal(build(), saved)
    assert (kind, "Task(restore=…)" in message) == ("mismatch", True)


def test_damage(saved, build):
    """A checkpoint that cannot be decoded is corrupt; one that was deleted has vanished."""
    metadata = saved / "pytree" / "_METADATA"
    whole = metadata.read_bytes()
    for content in (whole[:50], b"[]", b'{"use_ocdbt": true}', b'{"use_ocdbt": true, "tree_metadata": {"a": 1}}'):
        metadata.write_bytes(content)
        assert refusal(build(), saved)[0] == "corrupt"
    metadata.write_bytes(whole)
    for file in saved.glob("pytree/**/d/*"):
        content = bytearray(file.read_bytes())
        file.write_bytes(content[: len(content) // 2])
    assert refusal(build(), saved)[0] == "corrupt"
    for file in saved.glob("pytree/**/d/*"):
        file.unlink()
    assert refusal(build(), saved)[0] == "corrupt"
    shutil.rmtree(saved)
    assert refusal(build(), saved)[0] == "vanished"


def test_values_without_a_variable(saved, build):
    """A layer that only the checkpoint has is named, with the line that leaves it out."""
    from sidecar.evaluation.backends.tensorflow.completeness import Exceptions
    from sidecar.evaluation.backends.tensorflow.orbax import load as load_variables

    variables = [weight for weight in build().weights if "dense_1" not in weight.path and "seed" not in weight.path]
    with pytest.raises(EvaluationError, match="dense_1/kernel") as caught:
        load_variables(variables, str(saved))
    assert 'Task(ignore=["dense_1/' in str(caught.value)
    (note,) = load_variables(variables, str(saved), Exceptions(ignore=["dense_1/"]))
    assert "left out, as Task(ignore=…) says: dense_1/" in note


def test_single_numbers(tmp_path, trained):
    """Keras stores them as Python's, so as 64 bits; they must be what the model can hold."""
    import tensorstore

    from sidecar.evaluation.backends.tensorflow import orbax
    from sidecar.evaluation.backends.tensorflow.completeness import Exceptions

    def load_variables(variables, path):
        orbax.load(variables, path, Exceptions(ignore=["batch_normalization", "dense"]))

    path = tmp_path / "1"
    shutil.copytree(trained[0] / "2", path)
    metadata = json.loads((path / "pytree" / "_METADATA").read_text())
    key = [{"key": each, "key_type": 2} for each in ("non_trainable_variables", "scale")]
    metadata["tree_metadata"]["scale"] = {"key_metadata": key, "value_metadata": {"value_type": "scalar"}}
    (path / "pytree" / "_METADATA").write_text(json.dumps(metadata))
    base = {"driver": "file", "path": f"{path / 'pytree'}/"}
    place = {"driver": "ocdbt", "base": base, "path": "non_trainable_variables.scale/"}
    spec = {"driver": "zarr3", "kvstore": place}

    def put(value, dtype):
        array = tensorstore.open(spec, create=True, delete_existing=True, dtype=dtype, shape=())
        array.result().write(value).result()

    class Scale:
        path, shape = "scale", ()

        def __init__(self, dtype):
            self.dtype, self.value = dtype, None

        def assign(self, value):
            self.value = value

    put(float(np.float32(0.1)), "float64")
    variable = Scale("float32")
    load_variables([variable], str(path))
    assert variable.value == np.float32(0.1)
    assert variable.value.dtype == np.float32
    put(2**40 + 1, "int64")
    with pytest.raises(EvaluationError, match="scale is int32"):
        load_variables([Scale("int32")], str(path))
    put(7, "int64")
    variable = Scale("int32")
    load_variables([variable], str(path))
    assert variable.value == 7
