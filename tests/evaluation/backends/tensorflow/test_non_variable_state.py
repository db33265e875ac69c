# ruff: noqa: ARG001 - the signatures are Keras'
"""Track what layers hold outside their variables."""

import importlib

import pytest
from evaluation.backends.tensorflow.tables import (
    AMOUNTS,
    keras_says,
    of_amounts,
    of_normalized,
    task,
)

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Keras looks closely at dicts of inputs
]

SAVED, OTHER = slice(0, 12), slice(14, 17)


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
