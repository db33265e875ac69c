"""Evaluate a model in the user's program, and report what does not fit."""

import math

import pytest

from sidecar.errors import EvaluationFailedError, TaskError
from sidecar.keras.private_folder import FOLDER

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras, when it saves
]


@pytest.mark.parametrize("exact", [True, False])
def test_a_metric_that_cannot_be_added_up(exact, small, new_evaluator, tmp_path):
    """It is updated in turn, so that both ways give the same number."""

    class Largest(small.keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="largest")
            self.value = self.add_weight(name="value", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.value.assign(small.keras.ops.maximum(self.value, small.keras.ops.max(y_pred)))

        def result(self):
            return self.value + 0.0

    saved = small.trained(7)
    saved.save(tmp_path / "m-1.keras")
    evaluator = new_evaluator(small.model(metrics=[Largest()]), exact=exact)
    evaluator.start()
    (result,) = evaluator.results
    assert (result.examples is None) == (not exact)
    assert result.metrics["largest"] == pytest.approx(float(small.np.asarray(saved(small.x)).max()))
    assert evaluator.model.optimizer.iterations == 7


@pytest.mark.parametrize("exact", [True, False])
def test_a_metric_of_several_numbers(exact, small, new_evaluator, tmp_path):
    """Each number has its index in its name, as with exact sums."""
    metrics = [small.keras.metrics.F1Score(average=None, name="f1")]
    one_hot = small.np.eye(2, dtype="float32")[small.y]
    model = small.keras.Sequential([small.keras.Input((4,)), small.keras.layers.Dense(2, activation="softmax")])
    model.compile("adam", "categorical_crossentropy", metrics=metrics)
    model.save(tmp_path / "m-1.keras")
    evaluator = new_evaluator(model, (small.x, one_hot), exact=exact)
    evaluator.start()
    expected = model.evaluate(small.x, one_hot, verbose=0, return_dict=True)["f1"]
    (result,) = evaluator.results
    assert {name: number for name, number in result.metrics.items() if name != "loss"} == {
        f"f1_{index}": pytest.approx(float(number), rel=1e-6) for index, number in enumerate(expected)
    }


def test_keras_2_under_a_strategy(small, new_evaluator, tmp_path):
    """Its metrics cannot be read batch by batch, so the exact evaluation is refused; `model.evaluate` works."""
    import tf_keras

    small.trained(9, of=tf_keras).save_weights(str(tmp_path / "ckpt-9"))
    with small.tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = small.model(of=tf_keras, is_built=True)
    with pytest.raises(TaskError, match=r"MirroredStrategy.*exact=False"):
        new_evaluator(model).start()
    evaluator = new_evaluator(model, exact=False)
    evaluator.start()
    assert [result.step for result in evaluator.results] == [9]


def test_numbers_may_be_nan(small, new_evaluator, tmp_path):
    """A model that diverged is a result, too."""
    model = small.trained(1)
    model.set_weights([small.np.full_like(weight, math.nan) for weight in model.get_weights()])
    model.save(tmp_path / "m-1.keras")
    evaluator = new_evaluator()
    evaluator.start()
    assert math.isnan(evaluator.results[0].metrics["loss"])


def test_a_wrong_model_is_reported(small, new_evaluator, tmp_path):
    """With the variable that does not fit, and without words for authors of tasks."""
    small.trained(1, width=9).save_weights(tmp_path / "m-1.weights.h5")
    evaluator = new_evaluator()
    with pytest.raises(EvaluationFailedError, match=r"m-1.weights.h5.*9") as caught:
        evaluator.start()
    assert "build_model" not in str(caught.value)
    assert FOLDER not in str(caught.value)
    assert not (tmp_path / FOLDER).exists()
