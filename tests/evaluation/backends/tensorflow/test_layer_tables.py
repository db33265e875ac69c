"""Vocabularies, bins and assets: loaded where the checkpoint has them, said to be the task's where it has not."""

import importlib

import numpy as np
import pytest
from evaluation.backends.tensorflow.tables import (
    TEXTS,
    ended,
    keras_says,
    of_texts,
    of_weighted_words,
    task,
)

from sidecar import Task

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Keras looks closely at dicts of inputs
]

SAVED, OTHER = slice(0, 12), slice(14, 17)


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


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
def test_files_of_keras_lack_the_counter_of_adapt(evaluate, tmp_path, library):
    """A layer that was adapted with `tf_idf` also has the number of its texts, which no number needs."""
    of = importlib.import_module(library)
    model = of_weighted_words(of, SAVED)
    expected = keras_says(model, TEXTS)
    path = str(tmp_path / "m.keras")
    model.save(path)
    found = evaluate(task(lambda: of_weighted_words(of, OTHER), TEXTS), path)
    assert {name: found[name].value for name in expected} == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("kind", [".weights.h5", "ckpt"])
def test_where_the_checkpoint_does_not_have_it_the_result_says_so(evaluate, tmp_path, kind):
    """The numbers are those of the task's own vocabulary."""
    import keras
    import tensorflow as tf

    path = str(tmp_path / f"m{kind}")
    if kind == "ckpt":
        path = tf.train.Checkpoint(model=of_texts(keras, SAVED)).write(path)
    else:
        of_texts(keras, SAVED).save_weights(path)
    found = evaluate(task(lambda: of_texts(keras, OTHER), TEXTS), path)
    (note,) = found.notes
    assert "(TextVectorization): vocabulary, bins or assets come from the task" in note


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


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
def test_a_layer_without_a_vocabulary_is_named(library, evaluate, tmp_path):
    """The refusal has the calls that give it one."""
    import importlib

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
