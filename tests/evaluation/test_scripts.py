"""Models, steps and data as training scripts have them are evaluated unchanged: the numbers are those of Keras."""

import warnings

import numpy as np
import pytest

from sidecar import EvalSet, Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

EXAMPLES, BATCH, WIDTH = 23, 4, 6
BATCHES = -(-EXAMPLES // BATCH)
KERAS = ("keras", "tf_keras")


def package(name):
    """`keras` or `tf_keras`."""
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
    """What `model.evaluate` returns; batches are those of the task."""
    model.run_eagerly = True  # a trace takes longer than these few batches
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.evaluate(data.batch(BATCH), return_dict=True, verbose=0)


# -- models that are not built yet ---------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "make", [pytest.param(sequential, marks=pytest.mark.nightly), with_a_sequential_inside, with_a_build_of_its_own]
)
@pytest.mark.parametrize("name", KERAS)
def test_models_that_are_not_built(name, make, tmp_path, evaluate):
    """They are called on a first batch, whether the task names metrics or compiles; then weights of any kind fit."""
    import tensorflow as tf

    of = package(name)
    x, y = numbers(EXAMPLES, WIDTH), labels()
    saved = compile_(make(of), of)
    saved.run_eagerly = True
    saved.fit(x, y, batch_size=BATCH, verbose=0)
    tf.train.Checkpoint(model=saved, optimizer=saved.optimizer).write(str(tmp_path / "ckpt-1"))
    saved.save_weights(str(tmp_path / "m.weights.h5"))
    expected = keras_says(saved, dataset(x, y))
    chosen = {
        "metrics": lambda: [of.metrics.SparseCategoricalAccuracy(name="accuracy")],
        "loss": of.losses.SparseCategoricalCrossentropy(from_logits=True),
    }
    for build, named, ranks in ((lambda: make(of), chosen, 1), (lambda: compile_(make(of), of), {}, 2)):
        task = Task(build, {"test": lambda: (x, y)}, batch_size=BATCH, **named)
        for found in evaluate(task, str(tmp_path / "ckpt-1"), str(tmp_path / "m.weights.h5"), ranks=ranks):
            assert values_of(found) == pytest.approx(expected, rel=1e-5)


# -- steps that never call the model itself ------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", KERAS)
def test_a_step_that_never_calls_the_model(name, tmp_path, evaluate):
    """All variables are there after the step, so the model counts as built: files of Keras fit it."""
    import tensorflow as tf

    of = package(name)
    parts = [numbers(EXAMPLES, WIDTH, seed=seed) for seed in range(3)]
    saved = triplets(of)
    saved.run_eagerly = True
    saved.fit(dataset(*parts).batch(BATCH), verbose=0)
    expected = keras_says(saved, dataset(*parts))
    saved.built = True  # as a script does that wants to save
    saved.save_weights(str(tmp_path / "m.weights.h5"))
    tf.train.Checkpoint(model=saved).write(str(tmp_path / "ckpt-1"))
    task = Task(lambda: triplets(of), {"test": lambda: dataset(*parts)}, batch_size=BATCH)
    for found in evaluate(task, str(tmp_path / "m.weights.h5"), str(tmp_path / "ckpt-1"), ranks=2):
        assert values_of(found) == pytest.approx(expected, rel=1e-5)


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


@pytest.mark.parametrize("name", KERAS)
def test_layers_that_only_the_call_needs(name, tmp_path, evaluate):
    """The model is called as well, so that every variable in the file finds its own."""
    of = package(name)
    x, y = numbers(EXAMPLES, WIDTH), labels()
    saved = half_used(of)
    saved(x)
    saved.save_weights(str(tmp_path / "m.weights.h5"))
    task = Task(lambda: half_used(of), {"test": lambda: (x, y)}, batch_size=BATCH)
    found = evaluate(task, str(tmp_path / "m.weights.h5"), ranks=2)
    assert values_of(found) == pytest.approx(keras_says(saved, dataset(x, y)), rel=1e-5)


# -- elements that are no (x, y) -------------------------------------------------------------------------------------


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

STRUCTURES = {
    "x alone": (lambda: dataset(A), lambda model, data: error_of(model, data, data)),
    "an array alone": (lambda: A, lambda model, data: error_of(model, data, data)),
    "a tuple of one": (lambda: dataset((A,)), lambda model, data: error_of(model, data[0], data[0])),
    "a tuple of four": (
        lambda: (A, B, C, D),
        lambda model, data: error_of(model, data[0], data[1]) + error_of(model, data[2], data[3]),
    ),
    "a dict": (lambda: {"image": A, "target": B}, lambda model, data: error_of(model, data["image"], data["target"])),
    "a dict in a tuple": (
        lambda: dataset(({"image": A, "other": C}, B)),
        lambda model, data: error_of(model, data[0]["image"], data[1]),
    ),
    "arrays of a generator": (lambda: iter(A), lambda model, data: error_of(model, data, data)),
}
PARTS = {"an array alone", "a dict in a tuple"}
"""Structures that another one has, too: in `make test-all` alone."""


@pytest.mark.parametrize(
    "structure", [pytest.param(each, marks=pytest.mark.nightly if each in PARTS else ()) for each in STRUCTURES]
)
@pytest.mark.parametrize("name", KERAS)
def test_elements_that_a_step_takes_apart(name, structure, tmp_path, evaluate):
    """A `test_step` of its own is given elements as they are, as by `model.evaluate`."""
    import tensorflow as tf

    of = package(name)
    source, losses_of = STRUCTURES[structure]
    saved = own_step(of, losses_of)
    saved(A)
    tf.train.Checkpoint(model=saved).write(str(tmp_path / "ckpt-1"))
    task = Task(lambda: own_step(of, losses_of), {"test": source}, batch_size=BATCH)
    found = evaluate(task, str(tmp_path / "ckpt-1"), ranks=2)
    made = source()
    if not isinstance(made, tf.data.Dataset):
        made = dataset(A) if structure == "arrays of a generator" else tf.data.Dataset.from_tensor_slices(made)
    assert values_of(found) == pytest.approx(keras_says(saved, made), rel=1e-5)
    assert found.examples["test"] == EXAMPLES


def test_data_without_labels_for_keras_own_step(tmp_path, evaluate):
    """A loss that the model adds needs no labels, in Keras' own `test_step` either."""
    import keras as of
    import tensorflow as tf

    def build():
        class Penalty(of.layers.Layer):
            def call(self, x):
                self.add_loss(tf.reduce_mean(x**2))
                return x

        x = of.Input((WIDTH,))
        model = of.Model(x, Penalty()(of.layers.Dense(3)(x)))
        model.compile()
        return model

    size = EXAMPLES - EXAMPLES % BATCH  # a mean over batches: all are equally long
    x = A[:size]
    saved = build()
    tf.train.Checkpoint(model=saved).write(str(tmp_path / "ckpt-1"))
    expected = keras_says(saved, dataset(x))
    found = evaluate(Task(build, {"test": lambda: x}, batch_size=BATCH), str(tmp_path / "ckpt-1"))
    assert values_of(found)["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_nonfinite_examples_of_any_structure(tmp_path, evaluate):
    """Where nobody knows what is a label, numbers that are not finite are counted as inputs."""
    import keras
    import tensorflow as tf

    bad = B.copy()
    bad[7, 2] = np.nan
    losses_of = STRUCTURES["a dict"][1]
    saved = own_step(keras, losses_of)
    saved(A)
    tf.train.Checkpoint(model=saved).write(str(tmp_path / "ckpt-1"))
    task = Task(lambda: own_step(keras, losses_of), {"test": lambda: {"image": A, "target": bad}}, batch_size=BATCH)
    found = evaluate(task, str(tmp_path / "ckpt-1"), ranks=2)
    assert {place: each.examples for place, each in found.nonfinite["test"].items()} == {"input": 1}


@pytest.fixture
def refusal(digits):
    """Kind and message of what is raised while a task is built."""
    del digits
    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard
    from sidecar.evaluation.failures import EvaluationError

    def run(task):
        with pytest.raises(EvaluationError) as caught:
            KerasEvaluator.build(task, Shard(0, 1), threads=2, cache_bytes=1 << 20)
        return caught.value.kind, str(caught.value)

    return run


def test_metrics_need_labels(refusal):
    """Metrics that the task names compare with labels; the remedy names both ways out."""
    import keras

    named = {"metrics": lambda: [keras.metrics.MeanSquaredError()]}
    for source, found in ((lambda: A, "x alone"), (lambda: (A, B, C, D), "a tuple of 4"), (lambda: {"x": A}, "a dict")):
        kind, message = refusal(Task(lambda: sequential(keras), {"test": source}, batch_size=BATCH, **named))
        assert kind == "task_error"
        assert f"found {found}" in message
        assert "leave out metrics and loss" in message


def test_keras_own_step_takes_no_other_elements(refusal):
    """A compiled model without a `test_step` of its own takes what Keras takes; the sentence says which."""
    import keras

    task = Task(lambda: compile_(sequential(keras), keras), {"test": lambda: (A, B, C, D)}, batch_size=BATCH)
    kind, message = refusal(task)
    assert kind == "task_error"
    assert "a tuple of 4" in message
    assert "Traceback" not in message


# -- batches by number -----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("batch_size", [None, pytest.param(7, marks=pytest.mark.nightly)])
def test_batches_by_number(name, batch_size, tmp_path, evaluate):
    """A `PyDataset` of Keras 3 and a `Sequence` of tf_keras are batched already: their batches are evaluated."""
    import tensorflow as tf

    of = package(name)

    def build():
        first, second = of.Input((WIDTH,)), of.Input((WIDTH,))
        hidden = of.layers.Concatenate()([first, second])
        return compile_(of.Model([first, second], of.layers.Dense(3)(hidden)), of)

    saved = build()
    tf.train.Checkpoint(model=saved).write(str(tmp_path / "ckpt-1"))
    make = lambda: by_number(of, A, B, labels(), pack=tuple_of_inputs if name == "keras" else list_of_inputs)  # noqa: E731
    saved.run_eagerly = True
    expected = saved.evaluate(make(), return_dict=True, verbose=0)
    found = evaluate(Task(build, {"test": make}, batch_size=batch_size), str(tmp_path / "ckpt-1"), ranks=2)
    assert values_of(found) == pytest.approx(expected, rel=1e-5)
    assert (found.streams[0][0].batches, found.examples["test"]) == (BATCHES, EXAMPLES)


def test_batches_by_number_are_prepared_as_batches(batches):
    """`prepare` is mapped over what a sequence yields, which is a batch."""
    import keras
    import tensorflow as tf

    made = batches(EvalSet(lambda: by_number(keras, A, labels()), lambda x, y: (tf.reduce_sum(x, 1), y)), batch_size=7)
    made.first()
    made.read(lambda: None)
    found = np.concatenate([batch[0].numpy() for _, _, batch in made.own()])
    assert found == pytest.approx(A.sum(1), rel=1e-5)


# -- steps that look at values ---------------------------------------------------------------------------------------


def looks_at_values(of, **options):
    """A model whose step makes a Python number of a tensor."""

    def losses_of(model, data):
        return error_of(model, data, data) * float(np.isfinite(data.numpy()).all())

    model = own_step(of, losses_of)
    model.compile(**options)
    return model


@pytest.mark.parametrize("name", KERAS)
def test_a_step_that_runs_eagerly(name, tmp_path, evaluate):
    """As compiled: `run_eagerly=True` is what its author needs for `.numpy()`."""
    import tensorflow as tf

    of = package(name)
    saved = looks_at_values(of, run_eagerly=True)
    saved(A)
    tf.train.Checkpoint(model=saved).write(str(tmp_path / "ckpt-1"))
    task = Task(lambda: looks_at_values(of, run_eagerly=True), {"test": lambda: A}, batch_size=BATCH)
    found = evaluate(task, str(tmp_path / "ckpt-1"), ranks=2)
    assert values_of(found) == pytest.approx(keras_says(saved, dataset(A)), rel=1e-5)


def test_a_step_that_needs_values_in_a_graph(tmp_path, evaluate):
    """The sentence above the traceback names the cause, and both remedies."""
    import keras
    import tensorflow as tf

    from sidecar.evaluation.failures import as_failed

    saved = looks_at_values(keras, run_eagerly=True)
    saved(A)
    tf.train.Checkpoint(model=saved).write(str(tmp_path / "ckpt-1"))
    with pytest.raises(Exception, match="numpy") as caught:
        evaluate(Task(lambda: looks_at_values(keras), {"test": lambda: A}, batch_size=BATCH), str(tmp_path / "ckpt-1"))
    sentence, _, rest = as_failed(caught.value, phase="evaluate", plan=1, rank=0).message.partition("\n")
    assert "Steps are traced into a graph" in sentence
    assert "run_eagerly=True" in sentence
    assert "in losses_of" in rest
