"""A task need not adapt its lookup layers if the checkpoints are `.keras` files, which hold the vocabularies."""

import importlib
from functools import partial

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

EXAMPLES = 32
WORDS = np.array([["a b c"], ["b c d"], ["d e"], ["a a e"]] * 8)
NUMBERS = (np.arange(EXAMPLES) % 7).reshape(-1, 1)
Y = np.arange(EXAMPLES) % 3
LIBRARIES = ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)]


def network(library, kind, *, adapted):
    of = importlib.import_module(library)
    of.utils.set_random_seed(1)
    inputs = of.Input((1,), dtype="int64" if kind == "IntegerLookup" else "string")
    lookup = {
        "TextVectorization": partial(of.layers.TextVectorization, output_sequence_length=4),
        "multi_hot": partial(of.layers.TextVectorization, 20, output_mode="multi_hot", pad_to_max_tokens=True),
    }.get(kind, getattr(of.layers, kind, None))()
    if adapted:
        lookup.adapt(NUMBERS if kind == "IntegerLookup" else WORDS)
    hidden = lookup(inputs)
    if kind != "multi_hot":
        hidden = of.layers.Flatten()(of.layers.Embedding(20, 4)(hidden))
    model = of.Model(inputs, of.layers.Dense(3, activation="softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", ["TextVectorization", "StringLookup", "IntegerLookup", "multi_hot"])
@pytest.mark.drawn(1)
def test_the_vocabulary_of_the_file(library, kind, tmp_path, evaluate):
    """The numbers are those of the saved model, for any number of ranks and for each of two files."""
    import tensorflow as tf

    source = lambda: tf.data.Dataset.from_tensor_slices((NUMBERS if kind == "IntegerLookup" else WORDS, Y))  # noqa: E731
    saved = network(library, kind, adapted=True)
    paths, truths = [], []
    for number in range(2):
        saved.fit(source().batch(8), verbose=0)
        paths.append(str(tmp_path / f"m-{number}.keras"))
        saved.save(paths[-1])
        truths.append(saved.evaluate(source().batch(8), verbose=0, return_dict=True))
    task = Task(partial(network, library, kind, adapted=False), {"test": source}, batch_size=8)
    by_ranks = [evaluate(task, *paths, ranks=ranks) for ranks in (1, 2)]
    for found in by_ranks:
        for each, truth in zip(found, truths, strict=True):
            assert each["loss"].value == pytest.approx(truth["loss"], rel=1e-5)
            assert each["accuracy"].value == pytest.approx(truth["accuracy"])
            assert each.notes == ()
    assert by_ranks[0][1].hexes == by_ranks[1][1].hexes


@pytest.mark.parametrize(
    ("library", "more"),
    [
        ("keras", {}),
        pytest.param("tf_keras", {}, marks=pytest.mark.nightly),
        ("keras", {"restore": lambda model, path: model.load_weights(path)}),  # tf_keras asks for variables of the loss
    ],
)
def test_a_file_without_a_vocabulary(library, more, tmp_path, evaluate):
    """Weights alone are refused, with what gives the layer its words; so is a `restore` that does not."""
    import tensorflow as tf

    from sidecar.evaluation.failures import EvaluationError

    saved = network(library, "TextVectorization", adapted=True)
    path = str(tmp_path / "m.weights.h5")
    saved.save_weights(path)
    source = lambda: tf.data.Dataset.from_tensor_slices((WORDS, Y))  # noqa: E731 - one line of a task
    build = partial(network, library, "TextVectorization", adapted=False)
    with pytest.raises(EvaluationError, match="vocabulary") as caught:
        evaluate(Task(build, {"test": source}, batch_size=8, **more), path)
    assert caught.value.kind == "mismatch"
    assert "layer.adapt(…)" in str(caught.value)
