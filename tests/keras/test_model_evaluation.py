"""Evaluate a model in the user's program, and report what does not fit."""

import math

import pytest

from sidecar.errors import EvaluationFailedError, TaskError
from sidecar.keras.checkpoint_watch import FOLDER

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


class _Told:
    """Notes the calls of a callback."""

    def __init__(self, small):
        class Callback(small.keras.callbacks.Callback):
            calls = self.calls = []  # noqa: RUF012 - one callback of each class

            def on_test_begin(self, logs=None):
                self.calls.append(("on_test_begin", dict(self.params), self.model is not None))

            def on_test_batch_begin(self, batch, logs=None):
                self.calls.append(("on_test_batch_begin", batch))

            def on_test_batch_end(self, batch, logs=None):
                self.calls.append(("on_test_batch_end", batch, dict(logs)))

            def on_test_end(self, logs=None):
                self.calls.append(("on_test_end", dict(logs)))

        self.callback = Callback()


def test_callbacks_are_called_as_by_keras(small, new_evaluator, tmp_path, capsys):
    """With the same batches and parameters, and the metrics up to each batch; the line at the end is that of Keras."""
    saved = small.trained(3)
    saved.save(tmp_path / "m-1.keras")
    ours, theirs = _Told(small), _Told(small)
    new_evaluator(callbacks=[ours.callback]).start()
    line = capsys.readouterr().out
    saved.evaluate(small.dataset(), verbose=2, callbacks=[theirs.callback])
    expected = capsys.readouterr().out
    assert [call[:2] for call in ours.calls[:-1]] == [call[:2] for call in theirs.calls[:-1]]
    for our, their in zip(ours.calls, theirs.calls, strict=True):
        if our[0] in ("on_test_batch_end", "on_test_end"):
            assert our[-1] == pytest.approx({name: float(value) for name, value in their[-1].items()}, rel=1e-5)
    assert line.split(" - ")[0] == expected.split(" - ")[0]
    assert sorted(part.split(":")[0] for part in line.split(" - ")[3:]) == ["accuracy", "loss"]


@pytest.mark.parametrize("exact", [True, False])
def test_callbacks_of_another_keras(exact, small, new_evaluator, tmp_path):
    """They are refused before a checkpoint is there. The export of the best model works with both."""
    import tf_keras

    from sidecar.keras import SidecarEvaluatorModelExport

    model = small.model(of=tf_keras)
    for callback, told in ((small.keras.callbacks.TensorBoard(tmp_path / "logs"), "tf_keras"), (3, "holds 3")):
        with pytest.raises(TaskError, match=told):
            new_evaluator(model, exact=exact, callbacks=[callback]).start()
    export = SidecarEvaluatorModelExport(tmp_path / "best" / "m", tmp_path / "ckpt-{epoch}", save_weights_only=True)
    new_evaluator(model, exact=exact, callbacks=[export, tf_keras.callbacks.Callback()]).start()
