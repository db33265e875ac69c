"""Random numbers that `build_model` draws and no checkpoint holds are refused by a single worker, too."""

import numpy as np
import pytest

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

X = np.random.default_rng(1).normal(size=(23, 3)).astype("float32")
Y = (np.arange(23) % 2).astype("int32")


def drawn(shape=(3, 4)):
    return np.random.normal(size=shape).astype("float32")  # noqa: NPY002


def projecting(make):
    """Return a function that builds a model with an array, or a list of one, in a plain attribute."""
    import keras

    class Projecting(keras.Model):
        def __init__(self):
            super().__init__()
            self.projection, self.out = make(), keras.layers.Dense(2)

        def call(self, x):
            held = self.projection
            return self.out(keras.ops.matmul(x, held[0] if isinstance(held, list) else held))

    return Projecting


def with_a_constant():
    import keras

    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(2)(keras.ops.matmul(inputs, drawn())))


def with_a_function():
    import keras

    held = drawn()
    layers = keras.layers
    return keras.Sequential([keras.Input((3,)), layers.Lambda(lambda x: keras.ops.matmul(x, held)), layers.Dense(2)])


def normalizing():
    import keras

    return keras.Sequential([keras.Input((3,)), keras.layers.Normalization(), keras.layers.Dense(2)])


def task(build, **changes):
    import keras

    metrics = {"metrics": lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]}
    return Task(build, {"test": lambda: (X, Y)}, batch_size=8, **metrics | changes)


def saved(build, path):
    model = build()
    model(X)
    for layer in model.layers:
        if hasattr(layer, "adapt"):
            layer.adapt(X)
    model.save_weights(path)
    return str(path)


@pytest.mark.parametrize("kind", ["array", "list", "constant", "function"])
def test_what_each_build_draws_anew_is_refused(tmp_path, evaluate, kind):
    """The message names the attribute; the same draws each time are accepted, and so is Task(restore=…)."""
    builds = {"constant": with_a_constant, "function": with_a_function}
    build = builds.get(kind) or projecting(drawn if kind == "array" else lambda: [drawn()])
    path = saved(build, tmp_path / "m.weights.h5")
    with pytest.raises(EvaluationError, match="projection" if kind in ("array", "list") else kind):
        evaluate(task(build), path)
    evaluate(task(build, restore=lambda model, path: model.load_weights(path)), path)


def test_what_each_build_has_alike_is_accepted(tmp_path, evaluate):
    """Arrays of a seeded generator, and constants that a layer computes from restored variables."""
    for build in (projecting(lambda: np.random.default_rng(7).normal(size=(3, 4)).astype("float32")), normalizing):
        first, second = evaluate(task(build), *[saved(build, tmp_path / "m.weights.h5")] * 2)
        assert first.hexes == second.hexes
        assert first.notes == ()


@pytest.mark.filterwarnings("ignore:A total of:UserWarning")
@pytest.mark.parametrize("seeds", [False, True])
def test_random_values_that_a_restore_of_ones_own_leaves(tmp_path, evaluate, seeds):
    """`skip_mismatch` and `by_name` pass over other layers; a part that no prediction needs can be named."""
    import keras

    def build(classes=2, seed=7):
        if seeds:
            keras.utils.set_random_seed(seed)
        layers = [keras.Input((3,)), keras.layers.Dense(4, name="body"), keras.layers.Dense(classes, name="head")]
        return keras.Sequential(layers)

    def restore(model, path):
        model.load_weights(path, skip_mismatch=True)

    path = saved(lambda: build(5, 8), tmp_path / "m.weights.h5")  # training changed the values
    with pytest.raises(EvaluationError, match=r"leaves \S*head/kernel .*from_build_model=\['\*/head/kernel'\]"):
        evaluate(task(build, restore=restore), path)
    evaluate(task(build, restore=restore, from_build_model=["*/head/kernel"]), path)
    evaluate(task(build, restore=restore), saved(lambda: build(seed=8), tmp_path / "other.weights.h5"))
