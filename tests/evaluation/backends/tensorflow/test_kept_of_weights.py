"""Values that a model keeps of its weights from call to call: each checkpoint has the numbers of a new process."""

import functools

import numpy as np
import pytest

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

GENERATOR = np.random.default_rng(1)
X = GENERATOR.normal(size=(23, 3)).astype("float32")
PROMPTS = GENERATOR.normal(size=(2, 3)).astype("float32")
Y = (np.arange(23) % 2).astype("int32")
KEPT = {}


@functools.lru_cache(maxsize=4)
def embedded(model):
    return model.encoder(PROMPTS)


def scores(model, x, kind):
    """Similarity to embeddings of class names, computed once, or features on a scale computed once."""
    import tensorflow as tf

    if kind == "number" and "scale" not in KEPT and tf.executing_eagerly():
        KEPT["scale"] = float(tf.reduce_max(tf.abs(model.encoder.kernel)))
    if kind == "number":
        return model.encoder(x) / KEPT.get("scale", tf.reduce_max(tf.abs(model.encoder.kernel)))
    if kind == "cache":
        return model.encoder(x) @ tf.transpose(embedded(model))
    if "prompts" not in KEPT:
        KEPT["prompts"] = model.encoder(PROMPTS)
    return model.encoder(x) @ tf.transpose(KEPT["prompts"])


def building(kind, eagerly):
    import keras

    class Clip(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = keras.layers.Dense(2)
            self.encoder.build((None, 3))  # otherwise Keras traces `call` first, to build it

        def call(self, x):
            return scores(self, x, kind)

    def build():
        model = Clip()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, run_eagerly=eagerly)
        return model

    return build


def saved(build, path, seed):
    """Return the path of a checkpoint, and the values in it."""
    model = build()
    model.built = True
    values = [np.random.default_rng(seed).normal(size=each.shape) for each in model.get_weights()]
    model.set_weights(values)
    model.save_weights(path)
    return str(path), [each.astype("float64") for each in model.get_weights()]


def right(kernel, bias, kind):
    """Return the loss by a plain loop in float64."""
    features = X @ kernel + bias
    of = features / np.abs(kernel).max() if kind == "number" else features @ (PROMPTS @ kernel + bias).T
    return np.mean([np.log(np.exp(row).sum()) - row[label] for row, label in zip(of, Y, strict=True)])


@pytest.mark.parametrize("eagerly", [True, False], ids=["eager", "traced"])
@pytest.mark.parametrize("kind", ["dict", "cache", "number"])
def test_each_checkpoint_has_its_own_numbers(tmp_path, evaluate, kind, eagerly):
    """The worker stays alive, and would use values of the model that was just built, or of the first checkpoint."""
    KEPT.clear()
    embedded.cache_clear()
    build = building(kind, eagerly)
    paths, values = zip(*[saved(build, tmp_path / f"step-{seed}.weights.h5", seed) for seed in (1, 2)], strict=True)
    found = evaluate(Task(build, {"test": lambda: (X, Y)}, batch_size=8), *paths)
    for each, of_file in zip(found, values, strict=True):
        assert each.values["test"]["loss"].value == pytest.approx(right(*of_file, kind), rel=1e-5)


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "number"])
def test_what_a_layer_keeps_is_refused(tmp_path, evaluate, kind, seeded):
    """An attribute that a call fills once has a value of the model that was just built, whatever seed it has."""
    import keras
    import tensorflow as tf

    class Scaled(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder, self.scale = keras.layers.Dense(2), None
            self.encoder.build((None, 3))

        def call(self, x):
            features = self.encoder(x)
            if self.scale is None:
                scale = tf.reduce_max(tf.abs(self.encoder.kernel))
                self.scale = float(scale) if kind == "number" else scale
            return features / self.scale

    def build():
        if seeded:
            keras.utils.set_random_seed(7)
        model = Scaled()
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
        return model

    path, _ = saved(build, tmp_path / "step-1.weights.h5", 1)
    with pytest.raises(EvaluationError) as caught:
        evaluate(Task(build, {"test": lambda: (X, Y)}, batch_size=8), path)
    assert ".scale" in str(caught.value)
    assert "in each call" in str(caught.value)


def test_a_file_may_hold_the_first_values(tmp_path, evaluate):
    """A checkpoint of step 0 has the values of `build_model` with its seed; a restore of one's own writes them."""
    import keras

    def build():
        keras.utils.set_random_seed(3)
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

    build().save_weights(path := str(tmp_path / "step-0.weights.h5"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    given = {"eval_sets": {"test": lambda: (X, Y)}, "loss": loss, "batch_size": 8}
    plain = evaluate(Task(build, **given), path)
    own = evaluate(Task(build, **given, restore=lambda model, path: model.load_weights(path)), path)
    assert own.hexes == plain.hexes
    with pytest.raises(EvaluationError, match="kernel"):
        evaluate(Task(build, **given, restore=lambda model, _: model.set_weights(model.get_weights())), path)
