# ruff: noqa: ARG001, ARG002, ARG005 - the signatures are Keras'
"""Refuse metrics of Keras whose numbers cannot be added up."""

import pytest
from evaluation.backends.tensorflow.mistakes import examples, metric

pytestmark = pytest.mark.tensorflow


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_metric_that_changes_the_predictions_of_others(digits, task_refusal):
    """All metrics see the same arrays."""
    from sidecar.metrics import Accuracy, Mean

    def change(y, predictions):
        predictions *= -1
        return predictions[:, 0]

    failed = task_refusal(digits.make(metrics=lambda: [Mean(change), Accuracy()]))
    assert failed.kind == "task_error"
    assert "read-only" in failed.message


def test_metrics_with_too_many_results(digits, task_refusal):
    """A result that is not a number or a few of them is refused before anything is evaluated."""
    failed = task_refusal(digits.make(metrics=metric(result=lambda self: [1.0] * 51)))
    assert (failed.kind, failed.phase) == ("task_error", "build")
    assert "metric 'mine' (Mine) has 51 results, 1 to 50 can be published" in failed.message


def test_metric_with_plain_variables(digits, task_refusal):
    """A Keras 3 metric whose state Keras does not know of."""
    import keras
    import tensorflow as tf

    class Mine(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="mine")
            self.total = tf.Variable(0.0)

        def update_state(self, y, y_pred, sample_weight=None):
            self.total.assign_add(1.0)

        def result(self):
            return self.total + 0.0

    failed = task_refusal(digits.make(metrics=lambda: [Mine()]))
    assert failed.kind == "task_error"
    assert "metric 'mine' (Mine) keeps 'total' when it is reset" in failed.message
    assert "reset_state()" in failed.message


def test_metric_that_knows_no_weights(trained, digits, evaluate):
    """A metric without a sample_weight parameter is fine where there are none."""

    def update(self, y, y_pred):
        self.total.assign_add(examples(y))

    found = evaluate(digits.make(metrics=metric(update_state=update)), trained.path("model"), ranks=2)
    assert found["mine"].value == found.examples["test"]
