"""Layers with learned variables that a task uses next to its model: their values are those of no checkpoint."""

import numpy as np
import pytest

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

X = np.random.default_rng(1).normal(size=(23, 3)).astype("float32")


def model(**compiled):
    import keras

    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    if compiled:
        made.compile(**compiled)
    return made


@pytest.mark.parametrize("kind", ["task", "compiled", "step", "variable"])
def test_learned_values_outside_of_the_model_are_refused(digits, evaluate, kind):
    """Each process draws its own: the number would be a mixture of two losses, and that of no model."""
    del digits
    import keras
    import tensorflow as tf

    layer, scale = keras.layers.Dense(4), tf.Variable(2.0)

    def perceptual(y, predictions):
        return tf.reduce_sum((layer(y) - layer(predictions)) ** 2, -1)

    def scaled(y, predictions):
        return tf.reduce_sum((y - predictions) ** 2, -1) * scale

    class Stepped(keras.Sequential):
        def test_step(self, data):
            x, y = data
            self.seen.update_state(perceptual(y, self(x, training=False)))
            return {"seen": self.seen.result()}

        @property
        def metrics(self):
            return [self.seen]

    def stepped():
        made = Stepped([keras.Input((3,)), keras.layers.Dense(2)])
        made.seen = keras.metrics.Mean(name="seen")
        made.compile()
        return made

    data = {"test": lambda: (X, X[:, :2])}
    given = {
        "task": lambda: Task(model, data, loss=perceptual, batch_size=8, restore=lambda *_: None),
        "compiled": lambda: Task(lambda: model(loss=perceptual), data, batch_size=8, restore=lambda *_: None),
        "step": lambda: Task(stepped, data, batch_size=8, restore=lambda *_: None),
        "variable": lambda: Task(model, data, loss=scaled, batch_size=8, restore=lambda *_: None),
    }[kind]()
    with pytest.raises(EvaluationError, match="no checkpoint restores them") as caught:
        evaluate(given, "nowhere")
    name = "scale" if kind == "variable" else "layer"
    assert f"uses {name}, a" in str(caught.value)
    if kind == "variable":
        assert "scale = tf.Variable(…, trainable=False)" in str(caught.value)
        scale = tf.Variable(2.0, trainable=False)
    else:
        assert "layer.trainable = False" in str(caught.value)
        layer.trainable = False
    evaluate(given, "nowhere")


@pytest.mark.parametrize("kind", ["call", "lambda", "object"])
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_learned_values_that_the_model_uses_and_does_not_hold_are_refused(digits, evaluate, library, kind):
    """Neither a variable in a global variable nor a layer in an object of the user is part of any checkpoint."""
    del digits
    import importlib

    import keras
    import tensorflow as tf

    of = importlib.import_module(library)
    layer = of.layers.Dense(2)
    layer.build((None, 3))
    temperature = keras.Variable(2.0) if library == "keras" else tf.Variable(2.0)

    class Divided(of.Model):
        def __init__(self):
            super().__init__()
            self.layer = of.layers.Dense(2)

        def call(self, x):
            return self.layer(x) / temperature

    class Parts:
        def __init__(self):
            self.layers = [[of.layers.Dense(2)]]

    class Holding(of.Model):
        def __init__(self):
            super().__init__()
            self.last, self.parts = of.layers.Dense(2), Parts()

        def call(self, x):
            return self.last(self.parts.layers[0][0](x))

    def with_lambda():
        x = of.Input((3,))
        return of.Model(x, of.layers.Dense(2)(of.layers.Lambda(lambda x: tf.nn.relu(layer(x)))(x)))

    def build():
        made = {"call": Divided, "lambda": with_lambda, "object": Holding}[kind]()
        made.compile(loss="mse")
        return made

    found, line = {
        "call": ("call of Divided uses temperature, a", "temperature = "),
        "lambda": ("call of Lambda uses layer, a Dense", "layer.trainable = False"),
        "object": ("of a layer that Keras does not find in it", "from_build_model=["),
    }[kind]
    given = Task(build, {"test": lambda: (X, X[:, :2])}, batch_size=8, restore=lambda *_: None)
    with pytest.raises(EvaluationError, match="no checkpoint restores them") as caught:
        evaluate(given, "nowhere")
    assert found in str(caught.value)
    assert line in str(caught.value)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("place", ["source", "pipeline", "prepare", "metric"])
def test_layers_next_to_the_data_need_values_that_were_loaded(digits, evaluate, library, place):
    """An encoder that was just made gives other features than training had, alike in no two processes."""
    del digits
    import importlib

    import tensorflow as tf

    from sidecar import EvalSet, metrics

    of = importlib.import_module(library)
    encoder = of.Sequential([of.Input((3,)), of.layers.Dense(3)])
    encoder.trainable = False
    dataset = tf.data.Dataset.from_tensor_slices((X, X[:, :2])).batch(8)

    def distance(y, predictions):
        return np.abs(y - predictions).sum(1) + np.asarray(encoder(X))[0, 0]

    sets = {
        "source": lambda: (encoder.predict(X, verbose=0), X[:, :2]),
        "pipeline": lambda: dataset.map(lambda x, y: (encoder(x), y)).unbatch(),
        "prepare": EvalSet(lambda: (X, X[:, :2]), prepare=lambda x, y: (encoder(x[None])[0], y)),
        "metric": lambda: (X, X[:, :2]),
    }
    given = Task(
        lambda: of.Sequential([of.Input((3,)), of.layers.Dense(2)]),
        {"test": sets[place]},
        metrics=lambda: [metrics.Mean(distance) if place == "metric" else metrics.MSE()],
        batch_size=8,
        restore=lambda *_: None,
    )
    with pytest.raises(EvaluationError, match=r"uses encoder, a Sequential .* encoder\.load_weights\(…\)"):
        evaluate(given, "nowhere")
    encoder.set_weights([np.ones_like(weight) for weight in encoder.get_weights()])
    evaluate(given, "nowhere")


def test_layers_of_the_model_are_its_own(digits, evaluate):
    """A loss may use a layer of the model through a global variable."""
    del digits
    import keras
    import tensorflow as tf

    layer = keras.layers.Dense(2)
    shared = keras.Sequential([keras.Input((3,)), layer])

    def loss(y, predictions):
        return tf.reduce_sum((y - predictions) ** 2, -1) + tf.reduce_sum(layer.kernel**2)

    data = {"test": lambda: (X, X[:, :2])}
    evaluate(Task(lambda: shared, data, loss=loss, batch_size=8, restore=lambda *_: None), "nowhere")
