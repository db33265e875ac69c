"""Tasks that are a copy of what trains make its strategy, too: each worker process takes it for its own device."""

import json
import os
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.nightly]

TASK = """
import tensorflow as tf
from sidecar import Task

strategies = [
    tf.distribute.MirroredStrategy(),
    tf.distribute.MultiWorkerMirroredStrategy(),
    tf.distribute.experimental.CentralStorageStrategy(),
    tf.compat.v2.distribute.MirroredStrategy(),
]
assert [each.num_replicas_in_sync for each in strategies] == [1, 1, 1, 1]
assert strategies[1].cluster_resolver.task_type is None
assert isinstance(strategies[0], tf.distribute.MirroredStrategy)

scope = strategies[0].scope
with scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3)])
    model.compile("sgd", "mse", metrics=["mae"])


def build_model():
    return model


def data():
    x = tf.random.stateless_normal((37, 4), (1, 2))
    return tf.data.Dataset.from_tensor_slices((x, x[:, :3]))


def task():
    return Task(build_model, {"test": data}, batch_size=8)
"""


TRAINER = """
import json
import my_eval

my_eval.model.fit(my_eval.data().batch(8), verbose=0)
my_eval.model.save("m-1.keras")
print(json.dumps(my_eval.model.evaluate(my_eval.data().batch(8), return_dict=True, verbose=0)))
"""


def test_strategies_of_training(sidecar, tmp_path):
    """One worker process and two find the same bits, and what training finds without any strategy."""
    task = tmp_path / "my_eval.py"
    plain = "import contextlib\nscope = contextlib.nullcontext\n"
    task.write_text(re.sub("strategies = .*[.]scope\n", plain, TASK, flags=re.DOTALL))
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", TRAINER]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    task.write_text(TASK)
    words = ("eval", tmp_path / "m-1.keras", "--task", f"{task}:task", "--json", "--replicas")
    found = [sidecar.command(*words, replicas) for replicas in (1, 2)]
    assert [each.code for each in found] == [0, 0], found[-1].said
    alone, together = (json.loads(each.out)["metrics"]["test"] for each in found)
    assert alone == together
    numbers = {name: each["value"] for name, each in alone.items()}
    assert numbers == pytest.approx(json.loads(done.stdout), rel=1e-5)
