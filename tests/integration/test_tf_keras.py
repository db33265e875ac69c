"""Tasks that say `tf.keras` and mean Keras 2: the sentence that a first attempt ends with works as it is typed."""

import json
import os
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.nightly]

TASK = """
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from sidecar import Task

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.body = tf.keras.Sequential([layers.Dense(3)])

    def call(self, x):
        return self.body(x)

def build_model():
    model = Net()
    model.compile("sgd", tf.keras.losses.MeanSquaredError(), metrics=["mae"])
    return model

x = tf.random.stateless_normal((37, 4), (1, 2)).numpy()
read = keras.utils.timeseries_dataset_from_array(x, x[:, :3], sequence_length=1, shuffle=True, batch_size=8)

def data():
    return read.map(lambda one_step, y: (one_step[:, 0], y))

def task():
    return Task(build_model, {"test": data})
"""

TRAINER = """
import json, sys
import my_eval

model = my_eval.build_model()
model.fit(my_eval.data(), verbose=0)
my_eval.tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(sys.argv[1])
print(json.dumps(model.evaluate(my_eval.data(), return_dict=True, verbose=0)))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the task, the trainer's checkpoint ckpt-1, and what Keras 2 says of it."""
    folder = tmp_path_factory.mktemp("tf_keras")
    (folder / "my_eval.py").write_text(TASK)
    (folder / "ckpts").mkdir()
    environ = os.environ | {"TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-W", "ignore", "-c", TRAINER, folder / "ckpts" / "ckpt-1"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, json.loads(done.stdout)


def test_the_sentence_works_as_it_is_typed(sidecar, trained):
    """Both remedies of the message, in the task's file and in the settings, give the numbers of Keras 2."""
    folder, expected = trained

    def evaluate(*options):
        words = ("eval", folder / "ckpts" / "ckpt-1", "--task", f"{folder}/my_eval.py:task", "--json", *options)
        return sidecar.command(*words)

    failed = evaluate()
    assert failed.code == 1
    assert "It was saved by Keras 2 (tf_keras), the model is of Keras 3" in failed.said
    in_the_file, in_the_settings = re.findall("`([^`]+)`", failed.said)

    (folder / "sidecar.toml").write_text(in_the_settings + "\n")
    (folder / "my_eval.py").write_text(TASK)
    by_settings = evaluate("--config", folder / "sidecar.toml")
    (folder / "my_eval.py").write_text(in_the_file + TASK)
    by_file = evaluate()
    for done in (by_settings, by_file):
        assert done.code == 0, done.said
        numbers = {name: each["value"] for name, each in json.loads(done.out)["metrics"]["test"].items()}
        assert numbers == pytest.approx(expected, rel=1e-5)
