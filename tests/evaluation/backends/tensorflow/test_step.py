"""Models, steps and data as training scripts have them are evaluated unchanged: the numbers are those of Keras."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from evaluation.backends.tensorflow.saved_columns import losses
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
    "a dict": (  # its label is taken out of it
        lambda: {"image": A, "target": B},
        lambda model, data: error_of(model, data["image"], data.pop("target")),
    ),
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
@pytest.mark.drawn(2)
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


@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.nightly), 3, pytest.param(14, marks=pytest.mark.nightly)]
)
def test_joined_predictions_reproduce_the_published_numbers(trained, digits, evaluated, ranks):
    """A count exactly, a loss to rounding, states to the bit; one of 14 ranks has no batch."""
    published, found = evaluated(digits.make(digits.Subclassed, predictions=True), trained.path("subclassed"), ranks)
    kept = found.predictions["test"]
    assert list(kept) == ["place", "y", "predictions"]
    x, y = digits.held_out_arrays()
    assert np.array_equal(kept["y"], y)
    assert kept["predictions"].dtype == np.float32
    assert published["accuracy"].value == float((kept["predictions"].argmax(axis=1) == y).sum()) / len(y)
    assert published["loss"].value == pytest.approx(losses(y, kept["predictions"]).mean(), rel=1e-7)
    del x


def test_weights_of_examples_are_kept(trained, digits, evaluated):
    """Without them a weighted number could not be made again."""
    task = digits.make(digits.Subclassed, {"test": digits.weighted}, predictions=True)
    published, found = evaluated(task, trained.path("subclassed"), 2)
    kept = found.predictions["test"]
    assert np.array_equal(kept["weights"], digits.weights_of(kept["y"]))
    single = losses(kept["y"], kept["predictions"]) * kept["weights"]
    assert published["loss"].value == pytest.approx(single.mean(), rel=1e-7)
    assert published["loss_weighted_mean"].value == pytest.approx(single.sum() / kept["weights"].sum(), rel=1e-7)


def test_weights_saved_beside_the_evaluation_are_those_restored(trained, digits, evaluated):
    """Every worker's own folder holds them."""
    import tensorflow as tf

    _, found = evaluated(digits.make(), trained.path("model"), 2)
    expected = digits.conv()
    tf.train.Checkpoint(model=expected).restore(trained.path("model")).expect_partial()
    for worker in found.workers:
        model = digits.conv()
        tf.train.Checkpoint(model=model).restore(str(worker / "weights"))
        for one, other in zip(model.weights, expected.weights, strict=True):
            assert np.array_equal(one, other)
    assert found.predictions == {}


@pytest.mark.parametrize(("says", "remedy"), [("No space left on device", "make room"), ("Input/output error", None)])
def test_a_disk_that_is_full_is_no_lack_of_memory(trained, digits, evaluated, monkeypatch, says, remedy):
    """TensorFlow says ResourceExhausted of both."""
    import tensorflow as tf

    from sidecar.evaluation.failures import EvaluationError

    def write(*_):
        raise tf.errors.ResourceExhaustedError(None, None, f"weights.data; {says}")

    monkeypatch.setattr(tf.train.Checkpoint, "write", write)
    with pytest.raises(EvaluationError, match=rf"weights\.data; {says}") as caught:
        evaluated(digits.make(), trained.path("model"), 1)
    assert caught.value.kind == "storage"
    assert ("free some space there" in str(caught.value)) == (remedy is not None)


def test_a_compiled_model_is_asked_for_its_predictions(trained, digits, evaluated):
    """Its own test_step does not show them."""
    task = digits.make(digits.compiled, metrics=None, loss=None, predictions=True)
    published, found = evaluated(task, trained.path("model"), 1)
    kept = found.predictions["test"]
    assert published["accuracy"].value == float((kept["predictions"].argmax(axis=1) == kept["y"]).sum()) / len(
        kept["y"]
    )


def test_several_outputs_are_several_columns(digits, evaluated, tmp_path):
    """Named as Keras names their metrics."""
    import keras
    import tensorflow as tf

    def build():
        image = keras.Input((8, 8, 1))
        flat = keras.layers.Flatten()(image)
        return keras.Model(image, {"digit": keras.layers.Dense(10)(flat), "odd": keras.layers.Dense(1)(flat)})

    def source():
        return digits.held_out().map(lambda x, y: (x, {"digit": y, "odd": y % 2}))

    task = digits.make(
        build,
        {"test": source},
        metrics=lambda: {"digit": digits.accuracy()},
        loss={"digit": digits.SCCE(from_logits=True), "odd": keras.losses.BinaryCrossentropy(from_logits=True)},
        predictions=True,
    )
    published, found = evaluated(task, tf.train.Checkpoint(model=build()).write(str(tmp_path / "ckpt")), 2)
    kept = found.predictions["test"]
    assert list(kept) == ["place", "y_digit", "y_odd", "predictions_digit", "predictions_odd"]
    hits = (kept["predictions_digit"].argmax(axis=1) == kept["y_digit"]).sum()
    assert published["digit_accuracy"].value == float(hits) / digits.HELD_OUT


def test_sequences_of_one_length_with_what_the_model_masks(digits, evaluated, tmp_path):
    """Rows of any shape; positions that do not count are told."""
    import keras
    import tensorflow as tf

    def build():
        return keras.Sequential([keras.layers.Input((5,), dtype="int32"), keras.layers.Embedding(9, 4, mask_zero=True)])

    words = np.random.default_rng(1).integers(0, 4, (11, 5)).astype("int32")
    task = digits.make(build, {"test": lambda: (words, words % 4)}, metrics=None, batch_size=3, predictions=True)
    _, found = evaluated(task, tf.train.Checkpoint(model=build()).write(str(tmp_path / "ckpt")), 2)
    kept = found.predictions["test"]
    assert kept["predictions"].shape == (11, 5, 4)
    assert np.array_equal(kept["mask"], words != 0)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["plain", "noisy", "masked"])
def test_numbers_are_of_compiled_code_with_the_clusters_of_xla(kind):
    """The first evaluation has the bits of later ones, and noise is refused although it is as small as rounding.

    Shapes that depend on values are noted: XLA may compile for them, or not, as it has seen them before.
    """
    flags = {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"}
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, str(Path(__file__).with_name("xla_clustering.py")), kind]
    environment = os.environ | flags | {"PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
    first, *others = done.stdout.splitlines()
    if kind == "plain":
        assert others == [first]
        assert "loss" in first
        assert "TF_XLA_FLAGS" not in first
    else:
        assert ("gives different numbers" if kind == "noisy" else "shapes in it depend on values") in first
