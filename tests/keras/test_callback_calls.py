"""Call callbacks as Keras itself calls them."""

import pytest

from sidecar.errors import TaskError

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras, when it saves
]


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
