"""Metrics of several numbers are published as several, by their place or their threshold."""

import importlib

import numpy as np
import pytest

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

X = np.random.default_rng(1).normal(size=(23, 3)).astype("float32")
Y = np.eye(3, dtype="float32")[np.random.default_rng(2).integers(0, 3, 23)]


def metrics(of):
    return [of.metrics.F1Score(name="f1", average=None), of.metrics.Precision([0.25, 0.5], name="precision")]


def build(of, *, compiled=False):
    model = of.Sequential([of.Input((3,)), of.layers.Dense(3, activation="softmax", kernel_initializer="ones")])
    if compiled:
        model.compile(loss="categorical_crossentropy", metrics=metrics(of))
    return model


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_each_number_has_a_name(evaluate, library):
    """As the model's own evaluation says them, for metrics of the task and of the model."""
    of = importlib.import_module(library)
    ways = {
        "own": (lambda: build(of, compiled=True), None),
        "task": (lambda: build(of), lambda: metrics(of)),
    }
    found = {}
    for way, (model, made) in ways.items():
        task = Task(model, {"test": lambda: (X, Y)}, made, batch_size=4, restore=lambda *_: None)
        one, other = (evaluate(task, "nowhere", ranks=ranks) for ranks in (1, 2))
        assert one.hexes == other.hexes
        found[way] = {name: each.value for name, each in one.values["test"].items() if name != "loss"}
    names = ["f1_0", "f1_1", "f1_2", "precision_0.25", "precision_0.5"]
    assert list(found["task"]) == names
    assert {name.removeprefix("compile_metrics_"): each for name, each in found["own"].items()} == found["task"]
    model = build(of, compiled=True)
    model.run_eagerly = True  # a trace takes longer than these few batches
    alone = model.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)
    expected = [*np.ravel(alone["f1"]), *np.ravel(alone["precision"])]
    assert list(found["own"].values()) == pytest.approx([float(each) for each in expected], rel=2e-6)
