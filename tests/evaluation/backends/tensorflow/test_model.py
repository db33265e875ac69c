"""Build and complete models as scripts have them."""

import numpy as np
import pytest
from evaluation.backends.tensorflow.scripts import (
    BATCH,
    EXAMPLES,
    WIDTH,
    compile_,
    dataset,
    half_used,
    keras_says,
    labels,
    numbers,
    package,
    sequential,
    values_of,
    with_a_build_of_its_own,
    with_a_sequential_inside,
)

from sidecar import Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]

KERAS = ("keras", "tf_keras")


@pytest.mark.parametrize(
    "make", [pytest.param(sequential, marks=pytest.mark.nightly), with_a_sequential_inside, with_a_build_of_its_own]
)
@pytest.mark.parametrize("name", KERAS)
@pytest.mark.drawn(1)
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


def test_a_module_of_tensorflow_alone_gets_the_lines_to_write(tmp_path, evaluate):
    """They evaluate what training saved with `tf.train.Checkpoint`."""
    import keras
    import tensorflow as tf

    from sidecar.evaluation.failures import EvaluationError

    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable(tf.random.normal((WIDTH, 3)))

        @tf.function
        def __call__(self, x):
            return x @ self.kernel

    saved = Net()
    path = tf.train.Checkpoint(model=saved, step=tf.Variable(3)).write(str(tmp_path / "ckpt-3"))
    given = {
        "eval_sets": {"test": lambda: (numbers(EXAMPLES, WIDTH), labels())},
        "metrics": lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        "batch_size": BATCH,
    }
    with pytest.raises(EvaluationError, match="a Keras model, found Net") as caught:
        evaluate(Task(Net, **given), path)
    code, _, line = str(caught.value).partition("write\n\n")[2].partition("\n\nwith ")
    names = {"keras": keras, "tf": tf, "Task": Task, "build_inner": Net}
    exec(code, names)
    task = eval(line.partition(", where ")[0].replace("…", "**given"), {**names, "given": given})
    right = np.mean(saved(numbers(EXAMPLES, WIDTH)).numpy().argmax(1) == labels())
    assert values_of(evaluate(task, path)) == {"accuracy": pytest.approx(right)}
