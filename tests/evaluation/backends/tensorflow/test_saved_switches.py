"""Files of models that were quantised, or fine-tuned with LoRA: a refusal has the call that `build_model` lacks."""

from functools import partial

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

FORMS = ("m.keras", "m.weights.h5", "m.h5", "s.weights.json", "object", "export")
RANK = 2


def data(count=43):
    x = np.random.default_rng(7).normal(size=(count, 6)).astype("float32")
    return x, x[:, :3].argmax(axis=1)


def network(mode=None, *, lora=False):
    """A compiled model with its switches, and other values of the adapters than new ones have."""
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu", name="hidden"),
            keras.layers.Dense(3, activation="softmax", name="out"),
        ]
    )
    if lora:
        model.get_layer("hidden").enable_lora(RANK)
        model.get_layer("hidden").lora_kernel_b.assign(np.random.default_rng(3).normal(size=(RANK, 8)))
    if mode is not None:
        model.quantize(mode)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def save(model, folder, form):
    import tensorflow as tf

    path = str(folder / form)
    if form == "object":
        return tf.train.Checkpoint(model=model).save(path)
    if form == "export":
        model.export(path, verbose=False)
    elif "weights" in form:
        model.save_weights(path, **({"max_shard_size": 5e-6} if "json" in form else {}))
    else:
        model.save(path)
    return path


def refused(model, path):
    from sidecar.evaluation.backends.tensorflow.restore import restore
    from sidecar.evaluation.failures import EvaluationError

    with pytest.raises(EvaluationError) as caught:
        restore(model, path, None)
    assert caught.value.kind == "mismatch"
    return str(caught.value)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_a_quantised_model_is_named_with_the_call(mode, tmp_path, evaluate):
    """Each format has the mode in its message; with the call, each gives the numbers of the saved model."""
    saved = network(mode)
    x, y = data()
    truth = saved.evaluate(x, y, verbose=0, return_dict=True)
    task = Task(partial(network, mode), {"test": data}, batch_size=10)
    paths = [save(saved, tmp_path, form) for form in FORMS]
    for path in paths:
        assert f'call model.quantize("{mode}") in build_model' in refused(network(), path), path
    for path in paths if mode == "int8" else paths[:1]:
        found = evaluate(task, path, ranks=2)
        assert found["accuracy"].value == pytest.approx(truth["accuracy"])
        assert found["loss"].value == pytest.approx(truth["loss"], rel=1e-5)


def test_adapters_in_a_whole_file(tmp_path, evaluate):
    """A whole `.h5` file holds the adapters of LoRA, with or without quantization; the message has the calls."""
    for mode, more in ((None, ""), ("int8", ', and then model.quantize("int8")')):
        saved = network(mode, lora=True)
        path = save(saved, tmp_path, "m.h5")
        message = refused(network(), path)
        assert f"call model.get_layer('hidden').enable_lora({RANK}) in build_model{more}, as training did" in message
        x, y = data()
        truth = saved.evaluate(x, y, verbose=0, return_dict=True)
        found = evaluate(Task(partial(network, mode, lora=True), {"test": data}, batch_size=10), path)
        assert found["loss"].value == pytest.approx(truth["loss"], rel=1e-5)


@pytest.mark.parametrize(("switches", "call"), [({"mode": "int8"}, "model.quantize"), ({"lora": True}, "enable_lora")])
def test_a_switch_that_training_did_not_set(switches, call, tmp_path):
    """A plain model in an object checkpoint or an export lacks values: the call in `build_model` is too much."""
    for form in ("object", "export"):
        path = save(network(), tmp_path, form)
        assert f"leave out {call} in build_model" in refused(network(**switches), path), form


def test_a_file_of_adapters_alone(tmp_path):
    """KerasHub saves the adapters of a backbone in a file of their own, by the numbers of layers."""
    import h5py

    path = str(tmp_path / "m.lora.h5")
    with h5py.File(path, "w") as file:
        for number in range(2):
            group = file.create_group(f"lora/{number}/vars")
            group["lora_kernel_a"], group["lora_kernel_b"] = np.ones((6, RANK)), np.ones((RANK, 8))
    assert "model.backbone.load_lora_weights(path)" in refused(network(lora=True), path)


def test_an_odd_file_gives_no_advice(tmp_path):
    """A damaged configuration is refused as before, by what does not fit."""
    from sidecar.evaluation.backends.tensorflow.saved_switches import advice_for, advice_for_file

    path = tmp_path / "m.keras"
    path.write_bytes(b"no archive")
    assert advice_for_file(str(path)) is None
    assert advice_for_file(str(tmp_path / "m.h5")) is None
    assert advice_for([("branch/kernel", (3, 3)), ("logit_scale", ())]) is None
    assert "GPTQ" in advice_for([("hidden/quantized_kernel", (3, 3)), ("hidden/kernel_scale", (3,))]).for_task
