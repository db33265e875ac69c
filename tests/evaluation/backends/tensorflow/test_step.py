"""Models, steps and data as training scripts have them are evaluated unchanged: the numbers are those of Keras."""

import numpy as np
import pytest
from evaluation.backends.tensorflow.scripts import (
    BATCH,
    BATCHES,
    EXAMPLES,
    WIDTH,
    A,
    B,
    C,
    D,
    by_number,
    compile_,
    dataset,
    error_of,
    keras_says,
    labels,
    list_of_inputs,
    looks_at_values,
    numbers,
    own_step,
    package,
    sequential,
    triplets,
    tuple_of_inputs,
    values_of,
)

from sidecar import EvalSet, Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

KERAS = ("keras", "tf_keras")


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
