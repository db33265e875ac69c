"""The configuration in a file of Keras is compared with the model of the task, as far as it changes numbers."""

import importlib

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

LIBRARIES = ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)]
FILES = ("m.keras", "m.h5")


def notes_of(model, path):
    from sidecar.evaluation.backends.tensorflow.restore import restore

    return restore(model, str(path), None).notes


def refusal(model, path):
    from sidecar.evaluation.failures import EvaluationError

    with pytest.raises(EvaluationError, match="another model") as caught:
        notes_of(model, path)
    assert caught.value.kind == "mismatch"
    assert "Task(restore=lambda model, path: model.load_weights(path))" in str(caught.value)
    return str(caught.value)


def conv(of, *, activation="relu", strides=1, padding="same", epsilon=1e-3, dropout=0.3, more=(), **names):
    """A model with settings that no variable shows."""
    return of.Sequential(
        [
            of.Input((8, 8, 2)),
            of.layers.Conv2D(4, 3, strides=strides, padding=padding, activation=activation, **names),
            of.layers.BatchNormalization(epsilon=epsilon, momentum=0.9 if dropout else 0.99),
            *([of.layers.Dropout(dropout)] if dropout else []),
            of.layers.GlobalAveragePooling2D(),
            *more,
            of.layers.Dense(3, kernel_initializer="he_normal" if dropout else "zeros"),
        ]
    )


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.drawn(1)
def test_settings_that_change_numbers(library, name, tmp_path):
    """Each is refused, with layer, setting and both values; settings of training alone are not."""
    of = importlib.import_module(library)
    conv(of).save(tmp_path / name)
    for changed, told in (
        ({"activation": "tanh"}, "activation='relu' in the file, 'tanh' in the model"),
        ({"strides": 2}, "strides=[1, 1] in the file, [2, 2] in the model"),
        ({"padding": "valid"}, "padding='same' in the file, 'valid' in the model"),
        ({"epsilon": 1e-5}, "epsilon=0.001 in the file, 1e-05 in the model"),
    ):
        assert told in refusal(conv(of, **changed), tmp_path / name)
    assert notes_of(conv(of), tmp_path / name) == ()
    assert notes_of(conv(of, dropout=0.5), tmp_path / name) == ()
    assert notes_of(conv(of, dropout=0), tmp_path / name) == ()
    assert notes_of(conv(of, name="another"), tmp_path / name) == ()
    (note,) = notes_of(conv(of, more=[of.layers.ReLU()]), tmp_path / name)
    assert "ReLU" in note


@pytest.mark.parametrize("library", LIBRARIES)
def test_order_of_layers(library, tmp_path):
    """The same layers in another order: refused if the names of layers tell, also in a functional model."""
    of = importlib.import_module(library)

    def build(first, second):
        inputs = of.Input((4,), name="x")
        layers = {"a": of.layers.Activation("tanh", name="a"), "b": of.layers.Rescaling(2.0, name="b")}
        return of.Model(inputs, of.layers.Dense(2, name="out")(layers[second](layers[first](inputs))))

    build("a", "b").save(tmp_path / "m.keras")
    assert notes_of(build("a", "b"), tmp_path / "m.keras") == ()
    assert "layer 'a' follows an input in the file, b in the model" in refusal(build("b", "a"), tmp_path / "m.keras")


@pytest.mark.parametrize("library", LIBRARIES)
def test_models_that_do_not_describe_their_layers(library, tmp_path):
    """Neither a subclassed model, a class without `get_config`, nor a nested and wrapped layer causes a refusal."""
    of = importlib.import_module(library)

    class Net(of.Model):
        def __init__(self):
            super().__init__()
            self.dense = of.layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    saved, model = Net(), Net()
    for each in (saved, model):
        each(np.ones((1, 4), "float32"))
    saved.save(tmp_path / "net.keras")
    assert notes_of(model, tmp_path / "net.keras") == ()

    def nested(activation):
        inner = of.Sequential([of.Input((5, 4)), of.layers.Bidirectional(of.layers.GRU(3, activation=activation))])
        return of.Sequential([of.Input((5, 4)), inner, of.layers.Dense(2)])

    nested("tanh").save(tmp_path / "nested.keras")
    assert notes_of(nested("tanh"), tmp_path / "nested.keras") == ()
    assert "activation='tanh' in the file, 'relu' in the model" in refusal(nested("relu"), tmp_path / "nested.keras")


def functional(
    of,
    *,
    causal=False,
    operators=False,
    factor=2.0,
    swapped=False,
    first=True,
    constant=1.0,
    second=False,
    dtype="float32",
):
    """A model whose calls have arguments, and which has two inputs and two outputs."""
    inputs = [of.Input((5, 6), name="i"), of.Input((5, 6), name="j")]
    x = of.layers.MultiHeadAttention(2, 4, name="attention")(*inputs, use_causal_mask=causal)
    if operators:  # Keras makes up their names
        x = x * factor + np.full(6, constant, "float32")
    sequence, hidden, cell = of.layers.LSTM(3, return_state=True, name="lstm")(x)
    out = of.layers.Dense(2, name="out", dtype=dtype)(of.layers.Dropout(0.1)(cell if second else hidden))
    outputs = [out, of.layers.Dense(2, name="aside")(sequence)]
    return of.Model(inputs[::-1] if swapped else inputs, outputs if first else outputs[::-1])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.drawn(1)
def test_arguments_of_calls_and_constants(library, name, tmp_path):
    """A mask, a constant and another output of a layer are refused; places of inputs and outputs, and types, noted."""
    from sidecar.evaluation.backends.tensorflow.saved_configuration import compare_configuration

    of = importlib.import_module(library)
    functional(of, operators=True).save(tmp_path / name)
    assert notes_of(functional(of, operators=True), tmp_path / name) == ()
    for changed in ({"factor": 3.0}, {"constant": 4.0}):
        assert " is called with " in refusal(functional(of, operators=True, **changed), tmp_path / name)
    functional(of).save(tmp_path / name)
    assert notes_of(functional(of), tmp_path / name) == ()
    for changed, told in (
        ({"causal": True}, "layer 'attention' is called with use_causal_mask=None in the file, True in the model"),
        ({"second": True}, "'out' follows output 1 of lstm in the file, output 2 of lstm in the model"),
    ):
        assert told in refusal(functional(of, **changed), tmp_path / name)
    for changed, told in (
        ({"swapped": True}, "follows input 0, input 1 in the file, input 1, input 0 in the model"),
        ({"first": False}, "the outputs are those of out, aside in the file, of aside, out in the model"),
        ({"dtype": "mixed_bfloat16"}, "layer 'out' computes in float32 in the file, in mixed_bfloat16 in the model"),
    ):
        (note,) = compare_configuration(functional(of, **changed), str(tmp_path / name))
        assert told in note


@pytest.mark.parametrize("library", LIBRARIES)
def test_values_that_a_file_holds_as_settings(library, tmp_path):
    """Constants, bins and vocabularies that HDF5 has as settings alone are compared; learned ones are not."""
    of = importlib.import_module(library)

    def build(of_class, **settings):
        layer = getattr(of.layers, of_class)(**settings)
        dtype = "float32" if of_class in ("Normalization", "Discretization") else "int64"
        layers = [layer, *([] if of_class == "Normalization" else [of.layers.Embedding(9, 2)]), of.layers.Flatten()]
        return of.Sequential([of.Input((4,), dtype=dtype), *layers, of.layers.Dense(2)])

    for of_class, saved, other, told in (
        ("Normalization", {"mean": 2.0, "variance": 4.0}, {"mean": 0.0, "variance": 4.0}, "mean=2.0 in the file, 0.0"),
        ("Discretization", {"bin_boundaries": [0.0, 1.0]}, {"bin_boundaries": [0.0, 2.0]}, "bin_boundaries=[0.0, 1.0]"),
        ("IntegerLookup", {"vocabulary": [1, 2]}, {"vocabulary": [2, 1]}, "vocabulary=[1, 2] in the file, [2, 1]"),
        ("IntegerLookup", {"vocabulary": [1]}, {"vocabulary": [1], "num_oov_indices": 2}, "num_oov_indices=1"),
        ("Hashing", {"num_bins": 5}, {"num_bins": 6}, "num_bins=5 in the file, 6 in the model"),
    ):
        build(of_class, **saved).save(tmp_path / "m.h5")
        assert told in refusal(build(of_class, **other), tmp_path / "m.h5")
        assert not any("otherwise" in note for note in notes_of(build(of_class, **saved), tmp_path / "m.h5"))


def test_axes_in_a_file_of_keras_2_count_from_the_front(tmp_path):
    """It writes `axis=[3]` for the last axis, and no shapes."""
    import keras
    import tf_keras

    conv(tf_keras).save(tmp_path / "m.h5")
    assert not [note for note in notes_of(conv(keras), tmp_path / "m.h5") if "axis" in note]
