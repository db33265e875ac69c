"""Load vocabularies and bins out of a file as data."""

import importlib

import numpy as np
import pytest
from evaluation.backends.tensorflow.tables import (
    AMOUNTS,
    TEXTS,
    WORDS,
    keras_says,
    of_adapted_words,
    of_amounts,
    of_features,
    of_texts,
    of_words,
    task,
)

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Keras looks closely at dicts of inputs
]

CASES = {
    "FeatureSpace": (of_features, {"a": AMOUNTS}),
    "TextVectorization": (of_texts, TEXTS),
    "vocabulary given": (of_words, np.array([[WORDS[number % 6]] for number in range(23)])),
    "vocabulary adapted": (of_adapted_words, np.array([[WORDS[number % 6]] for number in range(23)])),
    "Discretization": (of_amounts, AMOUNTS),
}

SAVED, OTHER = slice(0, 12), slice(14, 17)

NIGHTLY = {"FeatureSpace", "vocabulary adapted"}
"""`FeatureSpace` makes layers as in `Discretization`; `TextVectorization` adapts, too. Both: `make test-all` alone."""


@pytest.mark.nightly
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
