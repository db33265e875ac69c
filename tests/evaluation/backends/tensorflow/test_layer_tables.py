# ruff: noqa: ARG001 - the signatures are Keras'
"""Vocabularies, bins and assets: loaded where the checkpoint has them, said to be the task's where it has not."""

import importlib

import numpy as np
import pytest

from sidecar import Task

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Keras looks closely at dicts of inputs
]

WORDS = ["red", "green", "blue", "black", "white", "grey"]
TEXTS = np.array([[f"{WORDS[number % 6]} {WORDS[number % 4]}"] for number in range(23)])
AMOUNTS = np.random.default_rng(1).normal(size=(23, 1)).astype("float32")
Y = np.random.default_rng(2).integers(0, 3, 23)


def drawn(of):
    """Weights that are the same in every model."""
    return of.initializers.RandomNormal(seed=3)


def ended(of, inputs, numbers, depth):
    hidden = of.layers.Embedding(depth, 4, embeddings_initializer=drawn(of))(numbers)
    hidden = of.layers.GlobalAveragePooling1D()(hidden)
    model = of.Model(inputs, of.layers.Dense(3, activation="softmax", kernel_initializer=drawn(of))(hidden))
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def of_texts(of, adapted):
    layer = of.layers.TextVectorization(output_sequence_length=3)
    layer.adapt(TEXTS[adapted])
    x = of.Input((1,), dtype="string")
    return ended(of, x, layer(x), 9)


def of_words(of, given):
    """A vocabulary that is given, which Keras keeps in the configuration."""
    layer = of.layers.StringLookup(vocabulary=WORDS if given == slice(0, 12) else WORDS[::-1])
    x = of.Input((1,), dtype="string")
    return ended(of, x, layer(x), 9)


def of_weighted_words(of, adapted):
    """The same vocabulary, weighted by other texts."""
    texts = TEXTS if adapted == slice(0, 12) else np.concatenate([TEXTS, TEXTS[:1], TEXTS[:1], TEXTS[:6]])
    layer = of.layers.TextVectorization(output_mode="tf_idf")
    layer.adapt(texts)
    layer.set_vocabulary(WORDS, idf_weights=[len(texts) / (number + 1) for number in range(len(WORDS))])
    x = of.Input((1,), dtype="string")
    model = of.Model(x, of.layers.Dense(3, activation="softmax", kernel_initializer=drawn(of))(layer(x)))
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def of_adapted_words(of, adapted):
    layer = of.layers.StringLookup(num_oov_indices=2)
    layer.adapt(np.array(WORDS if adapted == slice(0, 12) else WORDS[:3]))
    x = of.Input((1,), dtype="string")
    return ended(of, x, layer(x), 9)


def of_amounts(of, adapted):
    layer = of.layers.Discretization(num_bins=5)
    layer.adapt(AMOUNTS[adapted])
    x = of.Input((1,))
    return ended(of, x, layer(x), 7)


def of_features(of, adapted):
    """A `FeatureSpace` as part of the model, as scripts have it."""
    import tensorflow as tf

    space = of.utils.FeatureSpace(
        features={"a": of.utils.FeatureSpace.float_discretized(num_bins=5)}, output_mode="concat"
    )
    space.adapt(tf.data.Dataset.from_tensor_slices({"a": AMOUNTS[adapted]}))
    outputs = of.layers.Dense(3, activation="softmax", kernel_initializer=drawn(of))(space.get_encoded_features())
    model = of.Model(space.get_inputs(), outputs)
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


CASES = {
    "FeatureSpace": (of_features, {"a": AMOUNTS}),
    "TextVectorization": (of_texts, TEXTS),
    "vocabulary given": (of_words, np.array([[WORDS[number % 6]] for number in range(23)])),
    "vocabulary adapted": (of_adapted_words, np.array([[WORDS[number % 6]] for number in range(23)])),
    "Discretization": (of_amounts, AMOUNTS),
}
SAVED, OTHER = slice(0, 12), slice(14, 17)


def task(build, x, **changes):
    return Task(build_model=build, eval_sets={"test": lambda: (x, Y)}, batch_size=4, **changes)


def keras_says(model, x):
    import tensorflow as tf

    model.run_eagerly = True  # a trace takes longer than these few batches
    return model.evaluate(tf.data.Dataset.from_tensor_slices((x, Y)).batch(4), verbose=0, return_dict=True)


NIGHTLY = {"FeatureSpace", "vocabulary adapted"}
"""`FeatureSpace` makes layers as in `Discretization`; `TextVectorization` adapts, too. Both: `make test-all` alone."""


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.nightly if case in NIGHTLY else ()) for case in CASES]
)
def test_a_keras_file_brings_what_layers_hold(evaluate, tmp_path, case, library):
    """The numbers of the model that was saved, whatever the task adapted to; the same for any number of ranks."""
    if (case, library) == ("FeatureSpace", "tf_keras"):
        pytest.skip("of Keras 3 alone")
    of = importlib.import_module(library)
    build, x = CASES[case]
    paths, expected = [], []
    for number, adapted in enumerate((SAVED, slice(3, 9))):
        paths.append(str(tmp_path / f"m-{number}.keras"))
        model = build(of, adapted)
        expected.append(keras_says(model, x))
        model.save(paths[-1])
    paths, expected = [*paths, paths[0]], [*expected, expected[0]]
    assert expected[0] != expected[1], "or this test says nothing"
    found = [evaluate(task(lambda: build(of, OTHER), x), *paths, ranks=ranks) for ranks in (1, 2)]
    for alone, one, other in zip(expected, *found, strict=True):
        assert one.hexes == other.hexes
        assert {name: one[name].value for name in alone} == pytest.approx(alone, rel=2e-6)
        assert one.notes == ()
    assert found[0][0].hexes == found[0][2].hexes


def of_normalized(of, adapted):
    layer = of.layers.Normalization()
    layer.adapt(AMOUNTS[adapted])
    x = of.Input((1,))
    model = of.Model(x, of.layers.Dense(3, activation="softmax", kernel_initializer=drawn(of))(layer(x)))
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize(
    ("library", "build", "kind"),
    [
        ("keras", of_normalized, "ckpt"),
        ("keras", of_normalized, ".weights.h5"),
        ("tf_keras", of_normalized, "ckpt"),
        ("tf_keras", of_amounts, "ckpt"),
        ("tf_keras", of_amounts, ".weights.h5"),
    ],
)
def test_what_layers_make_of_their_variables_is_made_anew(evaluate, tmp_path, library, build, kind):
    """Means, and the bins of tf_keras, are kept as constants beside the variables that were restored."""
    import tensorflow as tf

    of = importlib.import_module(library)
    paths, expected = [], []
    for number, adapted in enumerate((SAVED, slice(3, 9))):
        model = build(of, adapted)
        expected.append(keras_says(model, AMOUNTS))
        path = str(tmp_path / f"m-{number}{kind}")
        paths.append(tf.train.Checkpoint(model=model).write(path) if kind == "ckpt" else path)
        if kind != "ckpt":
            model.save_weights(path)
    found = evaluate(task(lambda: build(of, OTHER), AMOUNTS), *paths)
    assert expected[0] != expected[1]
    for alone, one in zip(expected, found, strict=True):
        assert {name: one[name].value for name in alone} == pytest.approx(alone, rel=2e-6)
        assert one.notes == ()


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_weights_of_words_are_those_of_the_checkpoint(evaluate, tmp_path, library):
    """Layers keep them as constants beside the variable that is restored, and traces keep the constants."""
    import tensorflow as tf

    of = importlib.import_module(library)
    paths, expected = [], []
    for number, adapted in enumerate((SAVED, OTHER)):
        model = of_weighted_words(of, adapted)
        expected.append(keras_says(model, TEXTS))
        paths.append(tf.train.Checkpoint(model=model).write(str(tmp_path / f"m-{number}")))
    assert expected[0] != expected[1]
    for alone, one in zip(expected, evaluate(task(lambda: of_weighted_words(of, OTHER), TEXTS), *paths), strict=True):
        assert {name: one[name].value for name in alone} == pytest.approx(alone, rel=2e-6)


@pytest.mark.parametrize("kind", [".weights.h5", "ckpt", "exported"])
def test_where_the_checkpoint_does_not_have_it_the_result_says_so(evaluate, tmp_path, kind):
    """The numbers are those of the task's own vocabulary."""
    import keras
    import tensorflow as tf

    path = str(tmp_path / f"m{kind}")
    if kind == "ckpt":
        path = tf.train.Checkpoint(model=of_texts(keras, SAVED)).write(path)
    elif kind == "exported":  # only its graph has the vocabulary, and stored graphs are not run
        of_texts(keras, SAVED).export(path, verbose=False)
    else:
        of_texts(keras, SAVED).save_weights(path)
    found = evaluate(task(lambda: of_texts(keras, OTHER), TEXTS), path)
    (note,) = found.notes
    assert "(TextVectorization): vocabulary, bins or assets come from the task" in note


def test_ranks_that_adapted_to_other_data_are_told_apart(digits):
    """By the layer; equal ones are equal, whatever Keras counts up in names."""
    import keras

    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard

    def outside(adapted):
        made = task(lambda: of_amounts(keras, adapted), AMOUNTS)
        return list(KerasEvaluator.build(made, Shard(0, 1), threads=2, cache_bytes=0).outside().items())

    one, same, other = outside(SAVED), outside(SAVED), outside(OTHER)
    assert [digest for _, digest in one] == [digest for _, digest in same]
    differing = [name for (name, digest), (_, there) in zip(one, other, strict=True) if digest != there]
    assert any("(Discretization)" in name for name in differing)
    assert not any("Dense" in name for name in differing)


def test_what_does_not_fit_is_told_by_name(evaluate, tmp_path):
    """A setting that cannot be changed once a layer is built."""
    import keras

    from sidecar.evaluation.failures import EvaluationError

    def build(salt):
        x = keras.Input((1,), dtype="string")
        return ended(keras, x, keras.layers.Hashing(5, salt=salt, name="hashed")(x), 9)

    path = str(tmp_path / "m.keras")
    build(3).save(path)
    with pytest.raises(EvaluationError) as caught:
        evaluate(task(lambda: build(4), TEXTS), path)
    assert caught.value.kind == "mismatch"
    assert "layer 'hashed' (Hashing) was saved with another" in str(caught.value)


def test_assets_that_lead_out_of_the_file_are_refused(evaluate, tmp_path):
    """And none is written anywhere."""
    import zipfile

    import keras

    from sidecar.evaluation.failures import EvaluationError

    path = tmp_path / "m.keras"
    of_texts(keras, SAVED).save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("assets/../../escaped.txt", "out")
    with pytest.raises(EvaluationError) as caught:
        evaluate(task(lambda: of_texts(keras, SAVED), TEXTS), str(path))
    assert caught.value.kind == "corrupt"
    assert "escaped.txt" in str(caught.value)


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
def test_a_layer_without_a_vocabulary_is_named(library, evaluate, tmp_path):
    """The refusal has the calls that give it one."""
    import importlib

    from sidecar import Task
    from sidecar.evaluation.failures import EvaluationError

    of = importlib.import_module(library)

    def build():
        layers = [of.Input((1,), dtype="string"), of.layers.StringLookup(), of.layers.Embedding(9, 2)]
        model = of.Sequential([*layers, of.layers.Flatten(), of.layers.Dense(1)])
        model.compile(loss="mse")
        return model

    words = np.array([["a"], ["b"], ["a"], ["c"]])
    task = Task(build_model=build, eval_sets={"test": lambda: (words, np.ones(4, "float32"))}, batch_size=2)
    saved = build()
    path = str(tmp_path / "m.weights.h5")
    saved.save_weights(path)
    with pytest.raises(EvaluationError, match=r"layer\.set_vocabulary\(…\) in build_model") as caught:
        evaluate(task, path)
    assert caught.value.kind == "mismatch"
