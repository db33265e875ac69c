"""The evaluator of Keras 2, the daemon's evaluation and this evaluator side by side, on the same checkpoints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore"),  # of Keras 2
]

TASK = """
import keras
import numpy as np

from sidecar import Task

rng = np.random.default_rng(5)
x = rng.normal(size=(101, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")


def build_model():
    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2, activation="softmax")])
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def task():
    return Task(build_model=build_model, eval_sets={"validation": lambda: (x, y)}, batch_size=16)
"""


def events_of(tf, folder):
    """Return (step, tag, value) of all events, in order."""
    return [
        (event.step, value.tag, float(tf.make_ndarray(value.tensor)))
        for file in sorted(folder.iterdir())
        for record in tf.data.TFRecordDataset(str(file))
        for event in [tf.compat.v1.Event.FromString(record.numpy())]
        for value in event.summary.value
    ]


def told_of(of, np):
    """Return a callback of this Keras that notes its calls, with numbers in float32 as Keras gives them."""

    class Told(of.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.calls = []

        def on_test_begin(self, logs=None):
            self.calls.append(("begin", dict(self.params)))

        def on_test_batch_begin(self, batch, logs=None):
            self.calls.append(("batch begins", batch))

        def on_test_batch_end(self, batch, logs=None):
            self.calls.append(("batch ends", batch, {name: np.float32(value) for name, value in logs.items()}))

        def on_test_end(self, logs=None):
            self.calls.append(("end", None, {name: np.float32(value) for name, value in logs.items()}))

    return Told()


def train(small, of, saves, ckpts):
    """Train for three epochs, and save after each as the documentation of the original says."""
    model, tf = small.model(of=of), small.tf
    if saves == "callback":
        callback = of.callbacks.ModelCheckpoint(str(ckpts / "ckpt-{epoch}"), save_weights_only=True)
        model.fit(small.dataset(), epochs=3, verbose=0, callbacks=[callback])
        return
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, str(ckpts), max_to_keep=2)
    for _ in range(3):
        model.fit(small.dataset(), verbose=0)
        manager.save()


@pytest.mark.parametrize("saves", ["callback", "manager"])
def test_the_original_evaluator_does_the_same(saves, small, tmp_path, capsys, caplog):
    """Calls, TensorBoard, weights, iterations, log and end are equal, and so are numbers in float32."""
    import tf_keras

    from sidecar.keras import SidecarEvaluator

    train(small, tf_keras, saves, tmp_path / "ckpts")
    caplog.set_level("INFO", logger="tensorflow")

    def observed(kind, logs):
        model, told = small.model(of=tf_keras), told_of(tf_keras, small.np)
        caplog.clear()
        callbacks = [told, tf_keras.callbacks.TensorBoard(str(logs))]
        kind(model, small.dataset(), str(tmp_path / "ckpts"), None, 3, callbacks).start()
        lines = [line for line in caplog.messages if "End of evaluation" in line or "Last checkpoint" in line]
        events = events_of(small.tf, logs / "validation")
        same = {
            "calls": [call[:2] for call in told.calls],
            "events": [(step, tag) for step, tag, _ in events],
            "folders": sorted(folder.name for folder in logs.iterdir()),
            "weights": [weight.numpy().tobytes() for weight in model.weights],
            "iterations": int(model.optimizer.iterations),
            "log": [line.split("=")[0] for line in lines],
            "printed": [part.split(":")[0] for part in capsys.readouterr().out.split(" - ")[:4:2]],
        }
        numbers = [call[2] for call in told.calls if len(call) > 2]
        return same, [{tag: value for _, tag, value in events}, *numbers]

    original, its_numbers = observed(tf_keras.utils.SidecarEvaluator, tmp_path / "logs-of-original")
    ours, our_numbers = observed(SidecarEvaluator, tmp_path / "logs")
    assert ours == original
    assert ours["events"] == [(21, "evaluation_loss_vs_iterations"), (21, "evaluation_accuracy_vs_iterations")]
    for our, its in zip(our_numbers, its_numbers, strict=True):
        assert our == pytest.approx(its, rel=1e-6)


def test_the_daemon_finds_the_same_bits(small, tmp_path, quiet_environment):
    """`sidecar eval` with one and with two worker processes, and this evaluator: equal in every bit."""
    from sidecar.keras import SidecarEvaluator

    (tmp_path / "task.py").write_text(TASK)
    sys.path.insert(0, str(tmp_path))
    try:
        import task
    finally:
        sys.path.pop(0)
    ckpts = tmp_path / "ckpts"
    ckpts.mkdir()
    small.trained(12).save(ckpts / "m-1.keras")
    evaluator = SidecarEvaluator(task.build_model(), (task.x, task.y), ckpts, batch_size=16, stop_idle_seconds=0)
    evaluator.start()
    (result,) = evaluator.results
    for workers in ("1", "2"):
        command = [str(Path(sys.executable).with_name("sidecar")), "eval", "ckpts", "--task", "task.py:task", "--json"]
        done = subprocess.run(
            [*command, "--replicas", workers],
            cwd=tmp_path,
            env=quiet_environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        numbers = json.loads(done.stdout)["metrics"]["validation"]
        assert {name: value["hex"] for name, value in numbers.items()} == {
            name: value.hex() for name, value in result.metrics.items()
        }
