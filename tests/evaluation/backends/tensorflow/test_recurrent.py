"""Layers that go on from the batch before are evaluated in turn: the number is that of `model.evaluate`."""

import importlib
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sidecar import EvalSet, Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

EXAMPLES, BATCH, STEPS, WIDTH = 16, 4, 3, 6
KERAS = ("keras", "tf_keras")
X = np.random.default_rng(0).normal(size=(EXAMPLES, STEPS, WIDTH)).astype("float32")
Y = np.arange(EXAMPLES) % 3


def compile_(model, of):
    model.compile("sgd", of.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def memory(of, *, inputs=BATCH):
    layers = of.layers.LSTM(3, stateful=True, name="memory"), of.layers.Dense(3)
    return of.Sequential([of.layers.Input(batch_shape=(inputs, STEPS, WIDTH)), *layers])


def nested(of):
    both_ways = of.layers.Bidirectional(of.layers.GRU(3, stateful=True, name="gru"), name="both")
    inner = of.Sequential([of.layers.Input(batch_shape=(BATCH, STEPS, WIDTH)), both_ways, of.layers.Dense(3)])
    return of.Sequential([of.layers.Input(batch_shape=(BATCH, STEPS, WIDTH)), inner])


def cells(of):
    stacked = of.layers.RNN([of.layers.LSTMCell(3), of.layers.GRUCell(2)], stateful=True, name="cells")
    return of.Sequential([of.layers.Input(batch_shape=(BATCH, STEPS, WIDTH)), stacked, of.layers.Dense(3)])


def not_built(of):
    class Late(of.Model):
        def __init__(self):
            super().__init__()
            self.memory, self.head = of.layers.SimpleRNN(3, stateful=True, name="simple"), of.layers.Dense(3)

        def call(self, x):
            return self.head(self.memory(x))

    return Late()


def own_step(of):
    """A model whose step calls its layers, and keeps a mean of its own."""

    class Own(of.Model):
        def __init__(self):
            super().__init__()
            self.inner = memory(of)
            self.seen = of.metrics.Mean(name="size")

        def call(self, x):
            return self.inner(x)

        def test_step(self, data):
            self.seen.update_state(self.inner(data[0])[:, 0])
            return {"size": self.seen.result()}

        @property
        def metrics(self):
            return [self.seen]

    return Own()


def save(model, folder):
    """One checkpoint of each kind, by its path."""
    import tensorflow as tf

    tf.train.Checkpoint(model=model).write(str(folder / "ckpt-1"))
    model.save_weights(str(folder / "m.weights.h5"))
    model.save(str(folder / "m.keras"))
    return {kind: str(folder / name) for kind, name in FILES.items()}


FILES = {"object": "ckpt-1", "weights": "m.weights.h5", "keras": "m.keras"}


def load(make, of, kind, path):
    """A model that Keras itself restored, and nobody has used yet."""
    import tensorflow as tf

    fresh = compile_(make(of), of)
    if make is own_step:
        fresh.build((BATCH, STEPS, WIDTH))
    if make is not_built:
        fresh(X[:BATCH])
        fresh.memory.reset_states()
    if kind == "object":
        tf.train.Checkpoint(model=fresh).restore(path).expect_partial()
    else:
        fresh.load_weights(path)
    return fresh


def keras_says(model, x=X, y=Y):
    model.run_eagerly = True  # a trace takes longer than these few batches
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.evaluate(x, y, batch_size=BATCH, return_dict=True, verbose=0)


def values_of(found, eval_set="test"):
    return {name: value.value for name, value in found.values[eval_set].items()}


def trained(make, of):
    model = compile_(make(of), of)
    model.run_eagerly = True  # a trace takes longer than these few batches
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    return model


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize(
    ("make", "ranks"),
    [
        (memory, (1, 2)),
        pytest.param(memory, (3,), marks=pytest.mark.nightly),
        pytest.param(nested, (2,), marks=pytest.mark.nightly),
        pytest.param(cells, (2,), marks=pytest.mark.nightly),
        pytest.param(not_built, (2,), marks=pytest.mark.nightly),
    ],
)
def test_the_number_of_evaluate(make, ranks, name, tmp_path, evaluate):
    """Start from a fresh model for any number of workers, whatever was evaluated before."""
    of = importlib.import_module(name)
    paths = save(trained(make, of), tmp_path)
    expected = {kind: keras_says(load(make, of, kind, path)) for kind, path in paths.items() if kind != "keras"}
    expected["keras"] = expected["weights"]
    kinds = ["object", "weights", "keras", "object"]
    if (make, name) == (cells, "keras"):
        kinds = ["weights", "keras"]  # Keras 3 leaves the variables of several cells out of object checkpoints
    task = Task(lambda: compile_(make(of), of), {"test": lambda: (X, Y), "again": lambda: (X, Y)}, batch_size=BATCH)
    by_ranks = [evaluate(task, *(paths[kind] for kind in kinds), ranks=number) for number in ranks]
    for kind, *found in zip(kinds, *by_ranks, strict=True):
        for each in found:
            assert values_of(each) == pytest.approx(expected[kind], rel=1e-5), kind
            assert values_of(each, "again") == values_of(each)
            assert (each.examples["test"], each.hexes) == (EXAMPLES, found[0].hexes)
    note, *left = by_ranks[-1][0].notes
    assert "from the previous batch" in note
    assert any("that training left" in each for each in left) == ((kinds[0], name) == ("object", "keras"))
    assert len(by_ranks[-1][1].notes) == 1
    assert "worker 0" in note
    assert [each[0].own_batches for each in by_ranks[-1][0].streams][:2] == [EXAMPLES // BATCH, 0]
    if (make, name) == (memory, "keras"):  # which keeps the states in object checkpoints alone
        assert by_ranks[0][0].hexes != by_ranks[0][1].hexes


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_metrics_of_the_task_and_predictions(name, compiled, tmp_path, evaluator):
    """A model that is asked twice for its predictions answers the same twice."""
    of = importlib.import_module(name)
    path = save(trained(memory, of), tmp_path)["object"]
    fresh = load(memory, of, "object", path)
    expected = fresh.predict(X, batch_size=BATCH, verbose=0)
    named = {"metrics": lambda: [of.metrics.SparseCategoricalAccuracy(name="accuracy")]}
    task = Task(
        lambda: compile_(memory(of), of),
        {"test": lambda: (X, Y)},
        batch_size=BATCH,
        predictions=True,
        **({} if compiled else named),
    )
    made = evaluator(task)
    made.read(lambda: None)
    for _ in range(2):
        made.restore(path)()
        kept = []
        states = made.evaluate(lambda: None, lambda _, rows, kept=kept: kept.append(rows.columns["predictions"]))
        assert np.concatenate(kept) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        accuracy = made.compute(states)["test"].values["accuracy"].value
        assert accuracy == pytest.approx(keras_says(load(memory, of, "object", path))["accuracy"])


@pytest.mark.parametrize("name", KERAS)
def test_a_step_of_its_own(name, tmp_path, evaluate):
    """Nobody sees its predictions; it is evaluated in turn all the same."""
    of = importlib.import_module(name)
    saved = trained(own_step, of)
    saved.save_weights(str(tmp_path / "m.weights.h5"))
    expected = keras_says(load(own_step, of, "weights", str(tmp_path / "m.weights.h5")))
    task = Task(lambda: compile_(own_step(of), of), {"test": lambda: (X, Y)}, batch_size=BATCH)
    found = [evaluate(task, str(tmp_path / "m.weights.h5"), ranks=ranks) for ranks in (1, 2)]
    assert values_of(found[0])["size"] == pytest.approx(expected["size"], rel=1e-5)
    assert found[0].hexes == found[1].hexes


def test_what_is_saved_and_digested_is_the_checkpoint(tmp_path, evaluator):
    """Neither evaluating nor trying the model changes what the checkpoint gave; training resumes from it."""
    import keras
    import tensorflow as tf

    saved = trained(memory, keras)
    path = save(saved, tmp_path)["object"]
    made = evaluator(Task(lambda: compile_(memory(keras), keras), {"test": lambda: (X, Y)}, batch_size=BATCH))
    made.read(lambda: None)
    digests, saves = [], []
    for number in range(2):
        made.restore(path)()
        digests.append(made.digest()())
        (tmp_path / str(number)).mkdir()
        with ThreadPoolExecutor(1) as beside:
            made.evaluate(lambda folder=tmp_path / str(number): saves.append(beside.submit(made.save_weights, folder)))
        saves.pop().result()
        digests.append(made.digest()())
        again = memory(keras)
        tf.train.Checkpoint(model=again).restore(str(tmp_path / str(number) / "weights")).expect_partial()
        for one, other in zip(again.layers[-2].states, saved.layers[-2].states, strict=True):
            assert np.array_equal(one, other)
    assert len(set(digests)) == 1
    saved.layers[-2].states[0].assign(saved.layers[-2].states[0] + 1)
    tf.train.Checkpoint(model=saved).write(str(tmp_path / "ckpt-2"))
    made.restore(str(tmp_path / "ckpt-2"))()
    assert made.digest()() != digests[0]


@pytest.mark.parametrize("name", KERAS)
def test_a_checkpoint_without_states(name, tmp_path, evaluate):
    """Evaluate a model that was trained with stateful=False: the states begin as in a new model."""
    import tensorflow as tf

    of = importlib.import_module(name)
    layers = of.layers.LSTM(3), of.layers.Dense(3)
    trained_without = of.Sequential([of.layers.Input((STEPS, WIDTH)), *layers])
    tf.train.Checkpoint(model=trained_without).write(str(tmp_path / "ckpt-1"))
    expected = keras_says(load(memory, of, "object", str(tmp_path / "ckpt-1")))
    task = Task(lambda: compile_(memory(of), of), {"test": lambda: (X, Y)}, batch_size=BATCH)
    for found in evaluate(task, *[str(tmp_path / "ckpt-1")] * 2):
        assert values_of(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("name", KERAS)
def test_batches_of_one(name, tmp_path, evaluate):
    """Two examples would be taken for one, and broadcast."""
    of = importlib.import_module(name)
    make = lambda of: memory(of, inputs=1)  # noqa: E731
    saved = compile_(make(of), of)
    saved.fit(X, Y, batch_size=1, verbose=0)
    saved.save_weights(path := str(tmp_path / "m.weights.h5"))
    expected = load(make, of, "weights", path).evaluate(X, Y, batch_size=1, return_dict=True, verbose=0)
    task = Task(lambda: compile_(make(of), of), {"test": lambda: (X, Y)}, batch_size=1)
    assert values_of(evaluate(task, path, ranks=2)) == pytest.approx(expected, rel=1e-5)


def test_files_are_evaluated_in_order(tmp_path, evaluate):
    """Files that could go to one worker each stay together."""
    import keras
    import tensorflow as tf

    from sidecar.data import tfrecords

    for number in range(2):
        with tf.io.TFRecordWriter(str(tmp_path / f"{number}.tfrecord")) as writer:
            for each in range(number * 8, number * 8 + 8):
                writer.write(X[each].tobytes() + Y[each].astype("int64").tobytes())

    def parse(record):
        x = tf.reshape(tf.io.decode_raw(tf.strings.substr(record, 0, X[0].nbytes), tf.float32), (STEPS, WIDTH))
        return x, tf.io.decode_raw(tf.strings.substr(record, X[0].nbytes, 8), tf.int64)[0]

    path = save(trained(memory, keras), tmp_path)["object"]
    expected = keras_says(load(memory, keras, "object", path))
    source = EvalSet(tfrecords(str(tmp_path / "*.tfrecord"), by="file"), prepare=parse)
    task = Task(lambda: compile_(memory(keras), keras), {"test": source}, batch_size=BATCH)
    found = [evaluate(task, path, ranks=ranks) for ranks in (1, 2)]
    assert values_of(found[1]) == pytest.approx(expected, rel=1e-5)
    assert found[0].hexes == found[1].hexes
    assert found[1].streams[0][0].sharding == "batches"


def refused(evaluate, *arguments, **named):
    from sidecar.evaluation.failures import EvaluationError

    with pytest.raises(EvaluationError) as caught:
        evaluate(*arguments, **named)
    return caught.value


def test_a_set_that_divides_itself_is_refused(evaluate):
    """Nobody but its source knows which batches come before."""
    import keras

    def source(shard):
        del shard
        return X, Y

    task = Task(lambda: compile_(memory(keras), keras), {"test": EvalSet(source)}, batch_size=BATCH)
    error = refused(evaluate, task, "nowhere")
    assert (error.kind, error.lasting) == ("task_error", "task")
    assert "'memory'" in str(error)
    assert "'test' divides itself" in str(error)


@pytest.mark.parametrize("name", KERAS)
def test_a_short_last_batch_is_refused(name, evaluate):
    """Keras fails there as well; the sentence names the sizes, before anything is evaluated."""
    of = importlib.import_module(name)
    task = Task(lambda: compile_(memory(of), of), {"test": lambda: (X[:-1], Y[:-1])}, batch_size=BATCH)
    error = refused(evaluate, task, "nowhere", ranks=2)
    assert (error.kind, error.lasting) == ("task_error", "task")
    assert "'memory'" in str(error)
    assert "batch 3" in str(error)
    assert "3 examples" in str(error)
    assert "drop_remainder" in str(error)


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("kind", ["last", pytest.param("largest", marks=pytest.mark.nightly)])
def test_metrics_that_do_not_add_up_are_updated_in_turn(name, kind, evaluate):
    """As of any other model, though no batch of theirs can be divided."""
    import tensorflow as tf

    of = importlib.import_module(name)

    class Odd(of.metrics.Metric):
        def __init__(self):
            super().__init__(name="odd")
            self.kept = self.add_weight(name="kept", initializer="zeros")

        def update_state(self, y, y_pred, sample_weight=None):
            del y_pred, sample_weight
            now = tf.reduce_max(tf.cast(y, tf.float32))
            self.kept.assign(tf.maximum(self.kept, now) if kind == "largest" else now)

        def result(self):
            return self.kept + 0.0

    def build():
        of.utils.set_random_seed(1)
        model = memory(of)
        model.compile("sgd", "mse", metrics=[Odd()])
        return model

    named = {"restore": lambda *_: None, "batch_size": BATCH}
    for places in ((0, 4), (9, 13)):
        y = np.zeros((EXAMPLES, 3), "float32")
        y[list(places)] = 3
        found = evaluate(Task(build, {"test": lambda y=y: (X, y)}, **named), "nowhere", ranks=2)
        assert found["odd"].value == build().evaluate(X, y, batch_size=BATCH, verbose=0, return_dict=True)["odd"]
        assert any("odd does not add up" in note for note in found.notes)


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize(
    ("size", "named"),
    [
        (1, False),
        (BATCH, True),
        pytest.param(1, True, marks=pytest.mark.nightly),
        pytest.param(BATCH, False, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.drawn(1)
def test_a_fixed_batch_size_without_states(name, named, size, tmp_path, evaluate):
    """A model that fails on half a batch is tried on whole ones; batches are divided among workers as ever."""
    import tensorflow as tf

    of = importlib.import_module(name)

    class Fixed(of.layers.Layer):
        def call(self, x):
            return tf.reshape(x, (size, STEPS * WIDTH))

        def compute_output_shape(self, shape):
            del shape
            return size, STEPS * WIDTH

    def build():
        return compile_(of.Sequential([of.layers.Input((STEPS, WIDTH)), Fixed(), of.layers.Dense(3)]), of)

    saved = build()
    saved.run_eagerly = True  # a trace takes longer than these few batches
    saved.fit(X, Y, batch_size=size, verbose=0)
    saved.save_weights(path := str(tmp_path / "m.weights.h5"))
    chosen = {"metrics": lambda: [of.metrics.AUC(name="auc", from_logits=True)]} if named else {}
    y = np.eye(3, dtype="float32")[Y] if named else Y
    task = Task(build, {"test": lambda: (X, y)}, batch_size=size, **chosen)
    found = [evaluate(task, path, ranks=ranks) for ranks in (1, 2)]
    assert found[0].hexes == found[1].hexes
    assert found[1].streams[1][0].own_batches == EXAMPLES // size // 2
    if not named:
        expected = saved.evaluate(X, Y, batch_size=size, return_dict=True, verbose=0)
        assert values_of(found[0]) == pytest.approx(expected, rel=1e-5)
    (note,) = found[1].notes
    assert "parts of a batch cannot be evaluated" in note


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("kind", ["cell", "several cells", "images"])
def test_a_reset_gives_what_a_new_model_has(name, kind, digits):
    """Reset any cell, also where Keras' own method fails."""
    del digits
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates

    of = importlib.import_module(name)

    class Ones(of.layers.SimpleRNNCell):
        def get_initial_state(self, *arguments, batch_size=None, **others):
            del arguments, others
            return [tf.ones((batch_size, 3))]

    made, shape = {
        "cell": (lambda: of.layers.RNN(Ones(3), stateful=True), (2, STEPS, WIDTH)),
        "several cells": (
            lambda: of.layers.RNN([of.layers.LSTMCell(3), Ones(3)], stateful=True),
            (2, STEPS, WIDTH),
        ),
        "images": (lambda: of.layers.ConvLSTM2D(3, 2, stateful=True), (2, STEPS, 4, 4, 1)),
    }[kind]
    model = of.Sequential([of.layers.Input(batch_shape=shape), made()])
    states = RecurrentStates(model)
    new = [each.numpy() for each in states.values()]
    assert states.batch_size == 2
    model(np.ones(shape, "float32"))
    assert not all(map(np.array_equal, new, states.values()))
    states.reset()
    assert all(map(np.array_equal, new, states.values()))


@pytest.fixture
def evaluator(digits):
    """Makes an evaluator alone in its group."""
    del digits
    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard

    return lambda task: KerasEvaluator.build(task, Shard(0, 1), threads=2, cache_bytes=1 << 20)
