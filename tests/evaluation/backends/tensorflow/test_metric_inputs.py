"""Intervals of metrics of Keras from a sample of the examples, for metrics of the task and of a compiled model."""

import importlib
from dataclasses import replace

import numpy as np
import pytest

from sidecar import Task
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.metrics.metric import EvalSetInfo

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

EXAMPLES = 1203  # more than the sample has
RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(EXAMPLES, 3)).astype("float32")
CLASSES = (X + RANDOM.normal(size=X.shape)).argmax(1)
Y = np.eye(3, dtype="float32")[CLASSES]


def metrics(of):
    return [
        of.metrics.F1Score(name="f1", average="macro"),
        of.metrics.AUC(name="auc"),
        of.metrics.CategoricalAccuracy(name="accuracy"),
        of.metrics.TruePositives(name="hits"),
    ]


def build(of, *, compiled=False):
    model = of.Sequential([of.Input((3,)), of.layers.Dense(3, activation="softmax", kernel_initializer="identity")])
    if compiled:
        model.compile(loss="categorical_crossentropy", metrics=metrics(of))
    return model


def task(of, listed=metrics, data=(X, Y), *, compiled=False, **more):
    made = None if compiled else lambda: listed(of)
    source = {"test": lambda: data}
    return Task(lambda: build(of, compiled=compiled), source, made, batch_size=200, restore=lambda *_: None, **more)


def intervals(evaluated):
    plain = {name.removeprefix("compile_metrics_"): each for name, each in evaluated.values["test"].items()}
    return {name: None if each.lower is None else (each.value, each.lower, each.upper) for name, each in plain.items()}


def test_bits_and_numbers_are_those_without_intervals(evaluate):
    """For any number of workers, for metrics of the task and of a compiled model; totals and its means have none."""
    import keras

    given = task(keras, intervals=True)
    results = [evaluate(given, "nowhere", ranks=ranks) for ranks in (1, 2, 3)]
    assert len({str(each.values) for each in results}) == 1
    plain, found = evaluate(replace(given, intervals=False), "nowhere"), intervals(results[0])
    assert plain.hexes == results[0].hexes
    assert intervals(plain)["auc"] is None
    of_model = intervals(evaluate(task(keras, compiled=True, intervals=True), "nowhere", ranks=2))
    for name in ("f1", "auc"):
        assert found[name] == of_model[name]
        number, lower, upper = found[name]
        assert number - 0.1 < lower < number < upper < number + 0.1
    assert found["hits"] is of_model["hits"] is of_model["accuracy"] is None


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_numbers_that_have_none(evaluate, library):
    """By class, of a chosen threshold, of text or of large rows; without others a metric has one."""
    of = importlib.import_module(library)

    def listed(of):
        return [
            of.metrics.OneHotMeanIoU(3, name="iou"),
            of.metrics.F1Score(name="by_class", average=None),
            of.metrics.PrecisionAtRecall(0.5, name="threshold"),
        ]

    found = intervals(evaluate(task(of, listed, (X[:400], Y[:400]), intervals=True), "nowhere"))
    number, lower, upper = found.pop("iou")
    assert number - 0.1 < lower < number < upper < number + 0.1
    assert set(found) == {"by_class_0", "by_class_1", "by_class_2", "threshold"}
    assert not any(found.values())


@pytest.mark.parametrize("compiled", [False, True])
def test_arguments_are_read_where_a_sample_needs_them(compiled):
    """Those of a set without intervals, of few examples or of an unknown number are not copied."""
    import keras
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.step import NO_SEED, Step

    first = tuple(map(tf.constant, (X[:200], Y[:200])))
    spec = tuple(tf.TensorSpec([None, 3], tf.float32) for _ in first)
    step = Step(
        task(keras, compiled=compiled), build(keras, compiled=compiled), first, spec, lambda: None, autograph=False
    )
    evaluated = step.run(first, step.start, NO_SEED, [])
    inputs = step.measurement.inputs

    def read(examples, intervals=None):
        states = step.measurement.states(EvalSetInfo(examples, Shard(0, 1), intervals=intervals))
        arrays = step.arrays_of(evaluated, with_inputs=inputs.are_needed(states))
        step.add(states, [[array] for array in arrays], [0])
        return [len(array) for array in arrays[-inputs.width + 1 :]]

    assert 200 in read(200)
    for examples, intervals in ((200, False), (99, None), (None, None)):
        assert set(read(examples, intervals)) == {0}
