# ruff: noqa: ARG001, ARG005 - the signatures are Keras'
"""Mistakes in a task are told before anything is evaluated, or with the user's own traceback and none of our frames."""

import re

import pytest
from evaluation.backends.tensorflow.mistakes import examples, metric, raise_in_data, raise_in_metric

pytestmark = pytest.mark.tensorflow


def test_exception_in_the_data(digits, task_refusal):
    """Show the traceback and the line of an error in the user's own dataset, and none of our frames."""
    import numpy as np
    import tensorflow as tf

    def source():
        def look(number):
            raise_in_data(int(number))
            return np.zeros((8, 8, 1), "float32")

        images = tf.data.Dataset.range(60).map(lambda each: (tf.numpy_function(look, [each], tf.float32), each))
        return images.map(lambda x, y: (tf.ensure_shape(x, (8, 8, 1)), y % 10))

    failed = task_refusal(digits.make(eval_sets={"test": source}))
    assert failed.kind == "task_error"
    assert "cannot read image-40.png" in failed.message
    assert "in raise_in_data" in failed.message
    assert "sidecar/evaluation" not in failed.message


def test_exception_in_a_generator(digits, task_refusal):
    """The same for a generator."""
    import tensorflow as tf

    def source():
        def generate():
            for number in range(60):
                yield raise_in_data(number), 0

        spec = tf.TensorSpec((), tf.int64)
        return tf.data.Dataset.from_generator(generate, output_signature=(spec, spec))

    failed = task_refusal(digits.make(digits.dense, eval_sets={"test": source}, batch_size=64))
    assert failed.kind == "task_error"
    assert "cannot read image-40.png" in failed.message
    assert "in generate" in failed.message
    assert "sidecar/evaluation" not in failed.message


def test_operation_that_fails_in_the_data(digits, task_refusal):
    """TensorFlow's own error in the user's pipeline says what failed, and on which values."""
    import tensorflow as tf

    def parse(text):
        return tf.io.decode_png(text), 0

    source = lambda: tf.data.Dataset.from_tensor_slices([b"no image"]).map(parse)  # noqa: E731
    failed = task_refusal(digits.make(eval_sets={"test": source}))
    assert failed.kind == "task_error"
    assert "DecodePng" in failed.message
    assert "sidecar/evaluation" not in failed.message


def test_exception_in_a_metric(digits, task_refusal):
    """The traceback begins in the user's metric, though it was called by Keras, TensorFlow and us."""
    failed = task_refusal(digits.make(metrics=metric(update_state=raise_in_metric)))
    assert failed.kind == "task_error"
    sentence, _, traceback = failed.message.partition("\n")
    assert sentence.startswith("ZeroDivisionError: no examples of class 7 (raised while the model was built and tried")
    assert traceback.startswith("Traceback (most recent call last):\n")
    frames = [function.__code__.co_filename for function in (task_refusal, raise_in_metric)]
    assert re.findall(r'File "(.+?)"', traceback) == frames  # the caller in place of a worker, then the metric
    assert failed.message.endswith("ZeroDivisionError: no examples of class 7")
    assert "sidecar/evaluation" not in failed.message


def test_exception_within_a_keras_2_trace(digits, task_refusal):
    """AutoGraph's own account of a traceback, as tf_keras needs it, loses our frames too."""
    import tensorflow as tf
    import tf_keras

    def fail_in_graph(self, y, y_pred, sample_weight=None):
        if not tf.executing_eagerly():
            raise_in_metric(self, y, y_pred)
        self.total.assign_add(examples(y))

    failed = task_refusal(
        digits.make(
            lambda: digits.conv(tf_keras),
            metrics=metric(tf_keras.metrics.Metric, update_state=fail_in_graph),
            loss=None,
            restore=lambda model, path: None,
        )
    )
    assert (failed.kind, failed.phase) == ("task_error", "evaluate")
    assert "no examples of class 7" in failed.message
    assert "sidecar/evaluation" not in failed.message
    assert "raise_in_metric(self, y, y_pred)" in failed.message


def test_layer_that_does_not_fit_the_data(digits, task_refusal):
    """Where only Keras' own code took part, its frames are shown, and what it says."""
    import keras

    build = lambda: keras.Sequential([keras.Input((9, 9, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])  # noqa: E731
    failed = task_refusal(digits.make(build))
    assert failed.kind == "task_error"
    assert "expected axis -1 of input shape to have value 81" in failed.message
    assert "sidecar/evaluation" not in failed.message


def test_exception_in_build_model(digits, task_refusal):
    """So is that of build_model."""

    def build():
        raise FileNotFoundError("vocabulary.txt")

    failed = task_refusal(digits.make(build))
    assert (failed.kind, failed.phase) == ("task_error", "build")
    assert "in build\n    raise FileNotFoundError" in failed.message
    assert "sidecar/evaluation" not in failed.message


def test_exception_in_the_result(digits, task_refusal):
    """A metric's result() that only fails on the sums: still the user's."""

    def result(self):
        if float(self.total) > 100:  # more than a batch
            raise ValueError("too many")
        return self.total + 0.0

    failed = task_refusal(digits.make(metrics=metric(result=result)))
    assert (failed.kind, failed.phase) == ("task_error", "conclude")
    assert failed.message.endswith("ValueError: too many")
    assert "sidecar/evaluation" not in failed.message


def test_out_of_memory():
    """Both Python's and TensorFlow's way of saying so."""
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.backend import make
    from sidecar.evaluation.failures import as_failed

    for error in (MemoryError("1 GB"), tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")):
        failed = as_failed(error, phase="evaluate", plan=1, rank=0, out_of_memory=make().out_of_memory)
        assert failed.kind == "out_of_memory"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"build_model": lambda n: None},
            r"Task\(build_model=…\) is called with no argument.*missing a required argument",
        ),
        ({"build_model": lambda: None}, r"Task\(build_model=…\) must return a Keras model, found NoneType"),
        ({"eval_sets": {"test": lambda a, b: None}}, r"eval set 'test' is called with Shard.*missing.*'b'"),
        ({"metrics": lambda: ["accuracy"]}, r"must list metric objects, such as \[keras.*found 'accuracy'"),
        ({"metrics": lambda: "accuracy"}, r"must return a list of metrics, such as \[keras.*found str"),
    ],
    ids=["build_model with an argument", "no model", "source with two arguments", "names for metrics", "no list"],
)
def test_functions_that_do_not_fit(digits, task_refusal, changes, words):
    """Arguments and results of a user's function are checked at the border: a sentence, no traceback of ours."""
    failed = task_refusal(digits.make(**changes))
    assert failed.kind == "task_error"
    assert re.search(words, failed.message), failed.message
    assert "Traceback" not in failed.message


def test_who_was_lost_is_named():
    """TensorFlow's text about a lost peer becomes the peer's rank, node and address."""
    from sidecar.evaluation.backends.tensorflow.collective import MirroredCollective
    from sidecar.evaluation.backends.tensorflow.options import options_of
    from sidecar.protocol.messages import Join
    from sidecar.protocol.records import Member

    collective = object.__new__(MirroredCollective)
    members = (Member(0, "node-a", "w0", "10.0.0.1:21000"), Member(1, "node-b", "w1", "10.0.0.2:21000"))
    collective._join = Join(
        group="g", members=members, rank=0, task="t", framework="tensorflow", search_path=".", threads=2
    )
    collective._options = options_of(collective._join)
    text = "Collective ops is aborted by: failed to connect to /job:worker/replica:0/task:1/device:CPU:0 … restart"
    lost = collective._lost_member(text)
    assert (lost.kind, lost.lost) == ("member_lost", 1)
    assert str(lost).startswith("rank 1 on node-b (10.0.0.2:21000) could not be reached")
    assert collective._lost_member("Deadline").lost is None
    assert str(collective._lost_member("Deadline")).startswith("another rank could not be reached")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.drawn(1)
def test_numbers_of_examples_are_no_weights(evaluate, digits, trained, ranks):
    """A third part that counts the examples is refused with the line to write. A mask is a weight, with a note."""
    import tensorflow as tf

    from sidecar.evaluation.failures import EvaluationError

    x, y = digits.held_out_arrays()
    numbers = tf.range(len(x))
    for third in (numbers, numbers[::-1] + 7, numbers % 64):
        with pytest.raises(EvaluationError, match=r"\*rest: \(x, y\)"):
            evaluate(
                digits.make(eval_sets={"test": lambda third=third: (x, y, third)}), trained.path("model"), ranks=ranks
            )
    found = evaluate(digits.make(eval_sets={"test": lambda: (x, y, numbers % 2)}), trained.path("model"), ranks=ranks)
    assert any("third part of each batch" in note for note in found.notes)


def test_a_label_that_is_taken_for_a_weight(evaluate, digits, trained):
    """Two inputs and a label give an error about labels, which names what was taken for the weight."""
    from sidecar.errors import TaskError
    from sidecar.evaluation.failures import EvaluationError
    from sidecar.metrics import Accuracy

    x, y = digits.held_out_arrays()
    task = digits.make(eval_sets={"test": lambda: (x, x, y)}, metrics=lambda: [Accuracy()])
    with pytest.raises((EvaluationError, TaskError), match=r"\(\(x1, x2\), y\)"):
        evaluate(task, trained.path("model"))
