# ruff: noqa: ARG001, ARG002 - the signatures are Keras'
"""Metrics that do not add up are found whatever the first batch holds, and evaluated in turn."""

import importlib

import numpy as np
import pytest

from sidecar import Task

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

EXAMPLES, BATCH = 96, 4


def metric(of, kind):
    """The largest, or the last, of what it sees, without a word about it."""
    import tensorflow as tf

    class Odd(of.metrics.Metric):
        def __init__(self):
            super().__init__(name="odd")
            self.kept = self.add_weight(name="kept", initializer="zeros")

        def update_state(self, y, y_pred, sample_weight=None):
            now = tf.reduce_max(tf.cast(y, tf.float32))
            self.kept.assign(tf.maximum(self.kept, now) if kind == "largest" else now)

        def result(self):
            return self.kept + 0.0

    return Odd()


def late(of, kind):
    """Metrics that stop adding: a counter with a limit, an accuracy over the first examples, a part in the middle."""
    import tensorflow as tf

    class Late(of.metrics.Metric):
        def __init__(self):
            super().__init__(name="late")
            self.seen = self.add_weight(name="seen", initializer="zeros")
            self.right = self.add_weight(name="right", initializer="zeros")

        def update_state(self, y, y_pred, sample_weight=None):
            examples = tf.cast(tf.shape(y_pred)[0], tf.float32)
            if kind == "limit":
                self.seen.assign(tf.minimum(self.seen + examples, 60.0))
                self.right.assign(self.seen)
            elif kind == "first":
                taken = tf.clip_by_value(60.0 - self.seen, 0.0, examples)
                self.seen.assign_add(taken)
                self.right.assign_add(tf.reduce_sum(tf.cast(y[: tf.cast(taken, tf.int32)], tf.float32)))
            else:
                self.right.assign_add(tf.where((self.seen >= 30.0) & (self.seen < 60.0), 1.0, 0.0))
                self.seen.assign_add(examples)

        def result(self):
            return self.right / tf.maximum(self.seen, 1.0)

    return Late()


def source(labels):
    def make():
        return np.ones((EXAMPLES, 2), "float32"), labels.astype("float32")

    return make


def labels(*places):
    found = np.zeros(EXAMPLES)
    found[list(places)] = 3.0
    return found


def build(of, metrics=None):
    model = of.Sequential([of.Input((2,)), of.layers.Dense(1, kernel_initializer="ones")])
    if metrics is not None:
        model.compile(loss="mse", metrics=metrics)
    return model


@pytest.mark.parametrize(
    ("library", "compiled", "kind", "places"),
    [
        ("keras", True, "largest", range(4, EXAMPLES)),
        ("keras", True, "last", (70, 75, 95)),
        ("keras", False, "largest", (70, 75, 95)),
        ("keras", False, "last", (95,)),
        ("tf_keras", True, "largest", (95,)),
        ("tf_keras", False, "last", range(4, EXAMPLES)),
    ],
)
@pytest.mark.drawn(1)
def test_metrics_that_do_not_add_up_are_evaluated_in_turn(evaluate, library, compiled, kind, places):
    """The first batch adds nothing to them; wherever they first do, all begins again, and the number is Keras' own."""
    of = importlib.import_module(library)
    data = source(labels(*places))
    if compiled:
        task = Task(lambda: build(of, [metric(of, kind)]), {"test": data}, batch_size=BATCH, restore=lambda *_: None)
    else:
        made = {"test": data}
        task = Task(lambda: build(of), made, lambda: [metric(of, kind)], batch_size=BATCH, restore=lambda *_: None)
    right = build(of, [metric(of, kind)]).evaluate(*data(), batch_size=BATCH, verbose=0, return_dict=True)["odd"]
    for ranks in (1, 2, 3):
        first, second = evaluate(task, "nowhere", "nowhere", ranks=ranks)
        assert first["odd"].value == second["odd"].value == right
        assert any("in turn" in note and "odd" in note for note in first.notes)
        assert first.streams[0][0].own_batches == EXAMPLES // BATCH, "rank 0 has all batches"


@pytest.mark.parametrize(("compiled", "kind"), [(True, "limit"), (False, "first"), (True, "middle")])
@pytest.mark.drawn(1)
def test_metrics_that_stop_adding_late_are_evaluated_in_turn(digits, evaluate, compiled, kind):
    """No rank alone has as many examples as the limit, except one rank of one."""
    import keras

    data = source(labels(*range(0, EXAMPLES, 2)))
    if compiled:
        task = Task(
            lambda: build(keras, [late(keras, kind)]), {"test": data}, batch_size=BATCH, restore=lambda *_: None
        )
    else:
        made = {"test": data}
        task = Task(lambda: build(keras), made, lambda: [late(keras, kind)], batch_size=BATCH, restore=lambda *_: None)
    alone = late(keras, kind)
    for x, y in zip(*(np.split(array, EXAMPLES // BATCH) for array in data()), strict=True):
        alone.update_state(y[:, None], x[:, :1])
    for ranks in (1, 2, 3):
        found = evaluate(task, "nowhere", ranks=ranks)
        assert found["late"].value == pytest.approx(float(alone.result()))
        assert any("in turn" in note and "late does not add up" in note for note in found.notes)


def test_a_limit_that_is_not_reached_does_no_harm(digits, evaluate):
    """A buffer as large as the set adds up every example."""
    import keras
    import tensorflow as tf

    class Limited(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="limited")
            self.seen = self.add_weight(name="seen", initializer="zeros")

        def update_state(self, y, y_pred, sample_weight=None):
            self.seen.assign(tf.minimum(self.seen + tf.cast(tf.shape(y_pred)[0], tf.float32), EXAMPLES))

        def result(self):
            return self.seen + 0.0

    made = {"test": source(labels(1))}
    task = Task(lambda: build(keras), made, lambda: [Limited()], batch_size=BATCH + 1, restore=lambda *_: None)
    assert [evaluate(task, "nowhere", ranks=ranks)["limited"].value for ranks in (1, 3)] == [EXAMPLES] * 2


def test_what_adds_up_is_looked_at_a_bounded_number_of_times(digits, evaluate, monkeypatch):
    """Evaluate log2 n of n batches once more, and four of them by parts, in the first evaluation alone."""
    import keras

    from sidecar.evaluation.backends.tensorflow import replay

    looked = []
    whole = replay.Replay.add

    def add(self, batch, changes, run):
        def counted(*arguments):
            looked.append(1)
            return run(*arguments)

        return whole(self, batch, changes, counted)

    monkeypatch.setattr(replay.Replay, "add", add)
    task = Task(lambda: build(keras, ["mae"]), {"test": source(labels(5))}, batch_size=1, restore=lambda *_: None)
    first, second = evaluate(task, "nowhere", "nowhere")
    assert first.hexes == second.hexes
    assert 0 < len(looked) <= 8 + 1 + 4 * 3
