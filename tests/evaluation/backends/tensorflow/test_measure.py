# ruff: noqa: ARG005 - the signatures are Keras'
"""Choose what a step measures, and say where there is nothing."""

import pytest

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def refusal(digits, trained):
    """Builds and evaluates a task; returns phase and report of what is raised."""
    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard
    from sidecar.evaluation.failures import as_failed

    def run(task):
        phase = "build"
        try:
            evaluator = KerasEvaluator.build(task, Shard(0, 1), threads=2, cache_bytes=1 << 20)
            phase = "read"
            evaluator.read(lambda: None)
            evaluator.restore(trained.path("model"))()
            phase = "evaluate"
            states = evaluator.evaluate(lambda: None)
            phase = "conclude"
            evaluator.compute(states)
        except Exception as error:  # noqa: BLE001 - as a worker does
            return as_failed(error, phase=phase, plan=1, rank=0)
        pytest.fail("nothing was raised")

    del digits
    return run


def test_metrics_of_the_same_name(digits, refusal):
    """Two metrics under one name would hide each other."""
    failed = refusal(digits.make(metrics=lambda: digits.accuracy() + digits.accuracy()))
    assert "metrics need different names, none of them 'loss': found 'accuracy' again" in failed.message


def test_nothing_to_measure(digits, refusal):
    """Neither metrics nor loss nor a compiled model."""
    failed = refusal(digits.make(metrics=None, loss=None))
    assert failed.kind == "task_error"
    assert "there is nothing to measure: give Task(metrics=…) or Task(loss=…), or compile the model" in failed.message


@pytest.mark.parametrize(
    ("source", "found"),
    [(lambda x, y: x, "x alone"), (lambda x, y: {"x": x}, "a dict"), (lambda x, y: (x,), "a tuple of 1")],
)
def test_elements_without_labels(digits, refusal, source, found):
    """Metrics and losses that the task names need (x, y) or (x, y, sample_weight)."""
    failed = refusal(digits.make(eval_sets={"test": lambda: digits.held_out().map(source)}))
    assert failed.kind == "task_error"
    assert f"must be (x, y) or (x, y, sample_weight), found {found}." in failed.message
    assert "Traceback" not in failed.message


def test_loss_that_is_no_loss(digits, refusal):
    """A text, which only Keras' compile understands."""
    failed = refusal(digits.make(loss="mse"))
    assert "Task(loss='mse') must be a loss object or a function of (y, y_pred)" in failed.message


def test_test_step_with_results_of_its_own(digits, refusal):
    """A test_step that returns numbers which follow from no metric."""
    import tensorflow as tf

    class Loose(digits.OwnStep):
        def test_step(self, data):
            return super().test_step(data) | {"batch": tf.constant(1.0)}

    def build():
        model = Loose()
        model.compile()
        return model

    failed = refusal(digits.make(build, metrics=None, loss=None))
    assert "test_step returns 'batch', which does not follow from the metrics of the model" in failed.message
