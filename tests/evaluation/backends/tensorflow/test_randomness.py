# ruff: noqa: ARG001 - the signatures are Keras'
"""Models that draw random numbers in an evaluation: seeded by weights and batch, or refused."""

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

X = np.random.default_rng(1).normal(size=(23, 3)).astype("float32")


def noisy(draw):
    """A function that builds a model whose only layer adds noise to its inputs."""
    import keras

    class Noise(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator()
            self.scale = self.add_weight(name="scale", initializer="ones")

        def call(self, x):
            return x * self.scale + draw(self, keras.ops.shape(x))

    return lambda: keras.Sequential([keras.Input((3,)), Noise()])


def of_generator(layer, shape):
    import keras

    return keras.random.normal(shape, seed=layer.seeds) * 1e-6


def of_keras(layer, shape):
    import keras

    return keras.random.normal(shape)


def of_tensorflow(layer, shape):
    import tensorflow as tf

    return tf.random.normal(shape) * 1e-6


def task(build, **changes):
    import keras

    usual = {"metrics": lambda: [keras.metrics.MeanSquaredError(name="mse")], "restore": lambda *_: None}
    usual["eval_sets"] = {"test": lambda: (X, X + 1)}
    return Task(build_model=build, batch_size=4, **usual | changes)


@pytest.mark.parametrize(
    ("draw", "compiled"),
    [
        (of_keras, True),
        (of_generator, False),
        pytest.param(of_keras, False, marks=pytest.mark.nightly),
        pytest.param(of_generator, True, marks=pytest.mark.nightly),
    ],
)
def test_noise_of_keras_is_seeded_by_weights_and_batch(evaluate, draw, compiled):
    """Equal to the bit for any number of workers, and each time; other weights draw other noise."""

    def build():
        model = noisy(draw)()
        if compiled:
            model.compile(loss="mse", metrics=["mse"])
        return model

    changes = {"metrics": None} if compiled else {}
    found = [evaluate(task(build, **changes), "nowhere", "nowhere", ranks=ranks) for ranks in (1, 2)]
    assert len({str(sorted(each.hexes.items())) for pair in found for each in pair}) == 1
    assert any("random" in note for note in found[0][0].notes)
    scaled = {"restore": lambda model, path: model.layers[0].scale.assign(float(path))}
    one, other = evaluate(task(build, **changes, **scaled), "1", "1.0000001")
    assert one.hexes == found[0][0].hexes
    if draw is of_keras:
        assert abs(one["mse"].value - other["mse"].value) > 1e-4


def test_noise_is_refused_where_batches_depend_on_the_number_of_workers(evaluate):
    from sidecar.evaluation.failures import EvaluationError

    def divided(shard):
        return X[shard.rank :: shard.world_size], X[shard.rank :: shard.world_size] + 1

    for ranks in (1, 2):
        with pytest.raises(EvaluationError, match="divides itself"):
            evaluate(task(noisy(of_keras), eval_sets={"test": divided}), "nowhere", ranks=ranks)


def test_dropout_draws_nothing_in_an_evaluation(digits, evaluate, trained):
    """So nothing is said of it."""
    assert evaluate(digits.make(), trained.path("model")).notes == ()


@pytest.mark.parametrize("compiled", [True, False])
def test_noise_that_cannot_be_seeded_is_refused(evaluate, compiled):
    """However small: what is published must come again."""
    from sidecar.evaluation.failures import EvaluationError

    def build():
        model = noisy(of_tensorflow)()
        if compiled:
            model.compile(loss="mse", metrics=["mse"])
        return model

    with pytest.raises(EvaluationError) as caught:
        evaluate(task(build, **({"metrics": None} if compiled else {})), "nowhere")
    assert caught.value.kind == "task_error"
    assert "random" in str(caught.value)
    assert "SeedGenerator" in str(caught.value)
