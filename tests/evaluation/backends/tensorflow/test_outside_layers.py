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
