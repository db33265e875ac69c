# ruff: noqa: ARG001, ARG002 - the signatures are Keras'
"""Metrics that do not add up are found whatever the first batch holds, and evaluated in turn."""

import importlib

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

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


def test_what_adds_up_is_looked_at_a_bounded_number_of_times(digits, evaluate, monkeypatch):
    """Of n batches log2 n are evaluated once more, and four of them by parts, in the first evaluation alone."""
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
