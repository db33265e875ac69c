"""Models and steps as training scripts have them."""

import warnings

import numpy as np

EXAMPLES, BATCH, WIDTH = 23, 4, 6

BATCHES = -(-EXAMPLES // BATCH)


def package(name):
    """Import `keras` or `tf_keras` by its name."""
    import importlib

    return importlib.import_module(name)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def labels():
    return np.arange(EXAMPLES) % 3


def dataset(*parts):
    """Single examples of these arrays, as a dataset."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(parts[0] if len(parts) == 1 else parts)


def values_of(found):
    return {name: value.value for name, value in found.values["test"].items()}


def keras_says(model, data):
    """Return what `model.evaluate` returns; batches are those of the task."""
    model.run_eagerly = True  # a trace takes longer than these few batches
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.evaluate(data.batch(BATCH), return_dict=True, verbose=0)


def sequential(of):
    return of.Sequential([of.layers.Dense(5, activation="relu"), of.layers.Dense(3)])


def with_a_sequential_inside(of):
    class Block(of.Model):
        def __init__(self):
            super().__init__()
            self.feed_forward = of.Sequential([of.layers.Dense(5, activation="relu"), of.layers.Dense(3)])

        def call(self, x):
            return self.feed_forward(x)

    return Block()


def with_a_build_of_its_own(of):
    class Own(of.Model):
        def __init__(self):
            super().__init__()
            self.dense = of.layers.Dense(3)

        def build(self, shape):
            self.dense.build(shape)
            self.built = True

        def call(self, x):
            return self.dense(x)

    return Own()


def compile_(model, of):
    model.compile("sgd", of.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def triplets(of):
    """A model whose step calls a network within it, as those that compare examples do."""

    class Triplets(of.Model):
        def __init__(self):
            super().__init__()
            self.network = of.Sequential([of.layers.Dense(5, activation="tanh"), of.layers.Dense(2)])
            self.seen = of.metrics.Mean(name="loss")

        def call(self, inputs):
            return [self.network(each) for each in inputs]

        def triplet_losses(self, data):
            import tensorflow as tf

            anchor, positive, negative = (self.network(each) for each in data)
            near, far = (tf.reduce_sum((anchor - other) ** 2, -1) for other in (positive, negative))
            return tf.maximum(near - far + 0.5, 0.0)

        def train_step(self, data):
            import tensorflow as tf

            with tf.GradientTape() as tape:
                losses = self.triplet_losses(data)
            weights = self.network.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(losses, weights), weights, strict=True))
            self.seen.update_state(losses)
            return {"loss": self.seen.result()}

        def test_step(self, data):
            self.seen.update_state(self.triplet_losses(data))
            return {"loss": self.seen.result()}

        @property
        def metrics(self):
            return [self.seen]

    model = Triplets()
    model.compile("sgd")
    return model


def half_used(of):
    """A model whose step needs one of its layers, and whose call needs both."""

    class HalfUsed(of.Model):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = of.layers.Dense(4), of.layers.Dense(3)
            self.seen = of.metrics.Mean(name="size")

        def call(self, x):
            return self.head(self.encoder(x))

        def test_step(self, data):
            self.seen.update_state(self.encoder(data[0]))
            return {"size": self.seen.result()}

        @property
        def metrics(self):
            return [self.seen]

    model = HalfUsed()
    model.compile()
    return model


def own_step(of, losses_of):
    """A compiled model that takes elements apart itself."""

    class Own(of.Model):
        def __init__(self):
            super().__init__()
            self.dense = of.layers.Dense(WIDTH)
            self.seen = of.metrics.Mean(name="error")

        def call(self, x):
            return self.dense(x)

        def test_step(self, data):
            self.seen.update_state(losses_of(self, data))
            return {"error": self.seen.result()}

        @property
        def metrics(self):
            return [self.seen]

    model = Own()
    model.compile()
    return model


def error_of(model, x, other):
    import tensorflow as tf

    return tf.reduce_mean((model(x) - other) ** 2, -1)


A, B, C, D = (numbers(EXAMPLES, WIDTH, seed=seed) for seed in range(4))


def by_number(of, *parts, pack=tuple):
    """A `PyDataset` or `Sequence` that has its own batches, and would shuffle at the end of an epoch."""

    class ByNumber(of.utils.PyDataset if of.__name__ == "keras" else of.utils.Sequence):
        def __init__(self):
            super().__init__()
            self.order = np.arange(EXAMPLES)

        def __len__(self):
            return BATCHES

        def __getitem__(self, number):
            chosen = self.order[number * BATCH : (number + 1) * BATCH]
            return pack(each[chosen] for each in parts)

        def on_epoch_end(self):
            np.random.default_rng(0).shuffle(self.order)

    return ByNumber()


def tuple_of_inputs(parts):
    a, b, y = parts
    return (a, b), y


def list_of_inputs(parts):
    """As tf_keras alone takes it."""
    a, b, y = parts
    return [a, b], y


def looks_at_values(of, **options):
    """A model whose step makes a Python number of a tensor."""

    def losses_of(model, data):
        return error_of(model, data, data) * float(np.isfinite(data.numpy()).all())

    model = own_step(of, losses_of)
    model.compile(**options)
    return model
