# ruff: noqa: ARG005 - the signatures are Keras'
"""Choose what a step measures, and say where there is nothing."""

import pytest

pytestmark = pytest.mark.tensorflow


def test_metrics_of_the_same_name(digits, task_refusal):
    """Two metrics under one name would hide each other."""
    failed = task_refusal(digits.make(metrics=lambda: digits.accuracy() + digits.accuracy()))
    assert "metrics need different names, none of them 'loss': found 'accuracy' again" in failed.message


def test_nothing_to_measure(digits, task_refusal):
    """Neither metrics nor loss nor a compiled model."""
    failed = task_refusal(digits.make(metrics=None, loss=None))
    assert failed.kind == "task_error"
    assert "there is nothing to measure: give Task(metrics=…) or Task(loss=…), or compile the model" in failed.message


@pytest.mark.parametrize(
    ("source", "found"),
    [(lambda x, y: x, "x alone"), (lambda x, y: {"x": x}, "a dict"), (lambda x, y: (x,), "a tuple of 1")],
)
def test_elements_without_labels(digits, task_refusal, source, found):
    """Metrics and losses that the task names need (x, y) or (x, y, sample_weight)."""
    failed = task_refusal(digits.make(eval_sets={"test": lambda: digits.held_out().map(source)}))
    assert failed.kind == "task_error"
    assert f"must be (x, y) or (x, y, sample_weight), found {found}." in failed.message
    assert "Traceback" not in failed.message


def test_loss_that_is_no_loss(digits, task_refusal):
    """A text, which only Keras' compile understands."""
    failed = task_refusal(digits.make(loss="mse"))
    assert "Task(loss='mse') must be a loss object or a function of (y, y_pred)" in failed.message


def test_test_step_with_results_of_its_own(digits, task_refusal):
    """A test_step that returns numbers which follow from no metric."""
    import tensorflow as tf

    class Loose(digits.OwnStep):
        def test_step(self, data):
            return super().test_step(data) | {"batch": tf.constant(1.0)}

    def build():
        model = Loose()
        model.compile()
        return model

    failed = task_refusal(digits.make(build, metrics=None, loss=None))
    assert "test_step returns 'batch', which does not follow from the metrics of the model" in failed.message
