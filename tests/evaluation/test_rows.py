"""Rows that are not examples in TensorFlow, such as pixels, nodes and boxes: no interval, and a note."""

import numpy as np
import pytest

from sidecar import Task
from sidecar.metrics import Mean

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLES, SIZE, CLASSES = 23, 4, 3


def images():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, SIZE, SIZE, 2)).astype("float32")
    return x, generator.integers(0, CLASSES, (EXAMPLES, SIZE, SIZE))


@pytest.fixture(scope="module")
def networks(tmp_path_factory, digits):
    """Makers of a model that returns images or flat pixels, and a file for both."""
    import keras
    import tensorflow as tf

    del digits

    class Flat(keras.layers.Layer):
        def call(self, pixels):
            return tf.reshape(pixels, [-1, CLASSES])

        def compute_output_shape(self, shape):
            return (None, shape[-1])

    def model(last):
        keras.utils.set_random_seed(1)
        x = keras.Input((SIZE, SIZE, 2))
        return keras.Model(x, last(keras.layers.Conv2D(CLASSES, 1, activation="softmax")(x)))

    path = str(tmp_path_factory.mktemp("rows") / "m.weights.h5")
    model(keras.layers.Identity()).save_weights(path)
    return {"images": lambda: model(keras.layers.Identity()), "pixels": lambda: model(Flat())}, path


def losses(y, predictions):
    import keras
    import tensorflow as tf

    return keras.losses.sparse_categorical_crossentropy(tf.reshape(y, [-1]), tf.reshape(predictions, [-1, CLASSES]))


def hits(y, predictions):
    import keras
    import tensorflow as tf

    flat = tf.reshape(predictions, [-1, CLASSES])
    return keras.metrics.sparse_categorical_accuracy(tf.reshape(y, [-1]), flat)


def right(y, predictions):
    return y.ravel() == predictions.reshape(-1, CLASSES).argmax(-1)


def metrics(form):
    import keras

    own = [Mean(right)] if form == "pixels" else []  # with rows of images it needs one value for each
    return [keras.metrics.MeanMetricWrapper(hits, name="hits"), *own]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("form", ["images", "pixels"])
@pytest.mark.drawn(2)
def test_each_pixel_counts_and_none_has_an_interval(networks, evaluate, form, ranks):
    """Loss and metrics are means over pixels; flat pixels, which are rows of their own, are noted with both numbers."""
    import keras
    import tensorflow as tf

    makers, path = networks
    x, y = images()
    source = lambda: tf.data.Dataset.from_tensor_slices((x, y))  # noqa: E731 - one line of a task
    task = Task(makers[form], {"test": source}, metrics=lambda: metrics(form), loss=losses, batch_size=8)
    found = evaluate(task, path, ranks=ranks)
    model = makers["images"]()
    model.load_weights(path)
    predictions = model(x).numpy()
    single = keras.losses.sparse_categorical_crossentropy(y, predictions).numpy()
    assert found["loss"].value == pytest.approx(single.mean(), rel=1e-6)
    assert found["hits"].value == pytest.approx((predictions.argmax(-1) == y).mean())
    assert all(each.lower is None for each in found.values["test"].values())
    assert any("368 rows for 23 examples" in note for note in found.notes) == (form == "pixels")


@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_value_for_each_example_has_an_interval(networks, evaluate, shape):
    """A loss (n,) or (n, 1) has one value for each example."""
    import tensorflow as tf

    def mean_of_image(y, predictions):
        losses_of_pixels = tf.reshape(losses(y, predictions), [-1, SIZE * SIZE])
        return tf.reshape(tf.reduce_mean(losses_of_pixels, -1), [-1, *shape])

    makers, path = networks
    source = lambda: tf.data.Dataset.from_tensor_slices(images())  # noqa: E731 - one line of a task
    task = Task(makers["images"], {"test": source}, loss=mean_of_image, batch_size=8)
    found = evaluate(task, path, ranks=2)["loss"]
    assert found.lower < found.value < found.upper


def test_a_loss_of_a_batch_is_weighted_by_examples_not_rows(networks, evaluate):
    """A batch with as many examples counts as much, however many rows its predictions have, as in Keras."""
    import tensorflow as tf

    makers, path = networks
    x, y = images()
    source = lambda: tf.data.Dataset.from_tensor_slices((x, y))  # noqa: E731 - one line of a task

    def some(pixels):
        return pixels[: 1 + tf.shape(pixels)[0] // 3 * 2]

    def loss(_, predictions):
        return tf.reduce_mean(predictions[:, 0])

    def model():
        import keras

        flat = makers["pixels"]()
        return keras.Model(flat.input, keras.layers.Lambda(some, output_shape=(CLASSES,))(flat.output))

    found = evaluate(Task(model, {"test": source}, loss=loss, batch_size=10), path, ranks=2)
    built = model()
    built.load_weights(path)
    each = [(len(part), float(loss(None, built(part)))) for part in (x[:10], x[10:20], x[20:])]
    assert found["loss"].value == pytest.approx(sum(size * value for size, value in each) / EXAMPLES, rel=1e-6)
