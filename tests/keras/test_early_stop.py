"""The callback stops a real `fit` when the signal is there."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow

SIGNAL = dict.fromkeys(("metric", "best_checkpoint", "checkpoint", "run", "created_at"), "x") | {
    "reason": "no improvement",
    "best": 0.5,
    "best_step": 1,
    "step": 2,
    "patience": 3,
    "schema": 1,
}


def signal_in(place):
    folder = place / ".sidecar" / place.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "early_stop.json").write_text(json.dumps(SIGNAL))


def fit(place, at_epoch=None, epochs=5, examples=8, steps=1, **arguments):
    """Train, with the signal given during an epoch; return the callback and the number of batches of each epoch."""
    import keras
    import numpy as np

    from sidecar.keras import EarlyStop

    batches = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            batches.append(0)
            if epoch == at_epoch:
                signal_in(place)

        def on_train_batch_end(self, batch, logs=None):
            batches[-1] += 1

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(loss="mse", steps_per_execution=steps)
    callback = EarlyStop(place, **arguments)
    x, y = np.zeros((examples, 2)), np.zeros((examples, 1))
    model.fit(x, y, batch_size=2, epochs=epochs, verbose=0, callbacks=[Watch(), callback])
    return callback, batches


def test_training_stops_at_the_end_of_the_epoch(tmp_path):
    """The callback knows why."""
    callback, batches = fit(tmp_path / "ckpts", at_epoch=1)
    assert batches == [4, 4]
    assert callback.signal.reason.startswith("no improvement; ")
    assert str(tmp_path / "ckpts" / ".sidecar" / "ckpts" / "early_stop.json") in callback.signal.reason


def test_training_goes_on_without_a_signal(tmp_path):
    """To its last epoch."""
    callback, batches = fit(tmp_path / "ckpts")
    assert (batches, callback.signal) == ([4] * 5, None)


def test_training_can_stop_within_an_epoch(tmp_path):
    """After a number of batches, since an epoch may take a day."""
    _, batches = fit(tmp_path / "ckpts", at_epoch=1, every_batches=2)
    assert batches == [4, 2]


@pytest.mark.parametrize(("steps", "calls"), [(3, 2), (4, 2), (5, 1), (8, 1)])
def test_keras_reports_several_batches_at_once(tmp_path, steps, calls):
    """`steps_per_execution` need not divide the interval, of 4 batches here; an epoch has 40."""
    _, batches = fit(tmp_path / "ckpts", at_epoch=1, examples=80, steps=steps, every_batches=4)
    assert len(batches) == 2
    assert 1 <= batches[1] <= calls


def test_processes_agree(tmp_path):
    """One that has not seen the signal stops with the others, and each asks equally often."""
    asked = []

    def agree(stops):
        asked.append(stops)
        return len(asked) == 2

    callback, batches = fit(tmp_path / "ckpts", agree=agree)
    assert (batches, asked, callback.signal) == ([4, 4], [False, False], None)


def test_a_wrong_interval_is_refused(tmp_path):
    """The error about a wrong interval names the value."""
    from sidecar.keras import EarlyStop

    with pytest.raises(ValueError, match="0"):
        EarlyStop(tmp_path, every_batches=0)


def test_the_package_alone_imports_no_keras():
    """Only the first use of a part does."""
    code = "import sys, sidecar.keras; print('keras' in sys.modules, hasattr(sidecar.keras, 'Nothing'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
