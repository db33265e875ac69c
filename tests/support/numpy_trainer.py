"""A training process without the training, in a thread: saves numpy models and works out each model's numbers plainly.

Its models are for tests of the daemon: a worker process with `framework = "python"` starts in less than a second. The
trainer has the interface of the TensorFlow one in tests/integration/conftest.py; its tasks are tasks/numpy_*.py there.
"""

import math
import runpy
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

PLAIN = Path(__file__).parents[1] / "integration" / "tasks" / "numpy_plain.py"
NUMPY = {"SIDECAR_FRAMEWORK": "python", "SIDECAR_CHECKPOINT_PATTERN": "model-*.npz"}
"""The settings of every daemon and command that evaluates these models."""

WIDTH = 16


class NumpyTrainer:
    """Saves one model per step, in the order of the commands; keeps the newest models of each folder."""

    suffix = ".npz"

    def __init__(self):
        data = runpy.run_path(str(PLAIN))
        self._x, self._y, self._classes = data["X"].tolist(), data["Y"].tolist(), data["CLASSES"]
        self._thread = ThreadPoolExecutor(1)
        self._coming = deque()
        self._kept = {}

    def begin(self, folder, *steps, max_to_keep=100, every=0.0):
        """Save once per step in the background, `every` seconds apart; `saved` returns the numbers of each model."""
        start = self._thread.submit(time.monotonic)
        for number, step in enumerate(steps):
            due = number * every
            self._coming.append(self._thread.submit(self._save_at, start, due, Path(folder), step, max_to_keep))

    def saved(self, count):
        """Return name, step and plain numbers of each of the next checkpoints, once they are saved."""
        return [self._coming.popleft().result(60) for _ in range(count)]

    def save(self, folder, *steps, max_to_keep=100):
        """Save once per step and wait for it."""
        self.begin(folder, *steps, max_to_keep=max_to_keep)
        return self.saved(len(steps))

    def close(self):
        """Cancel the saves that have not begun, and end the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _save_at(self, start, due, folder, step, max_to_keep):
        time.sleep(max(0.0, start.result() + due - time.monotonic()))
        model = self._model(step)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"model-{step}{self.suffix}"
        unfinished = folder / f".{path.name}"
        with unfinished.open("wb") as file:
            self._write(file, step, model)
        unfinished.rename(path)
        kept = self._kept.setdefault(folder, [])
        kept.append(path)
        for old in kept[:-max_to_keep]:
            old.unlink(missing_ok=True)
        del kept[:-max_to_keep]
        return {"name": path.name, "step": step, **self._numbers(model)}

    def _write(self, file, _step, model):
        np.savez(file, **model)

    def _model(self, step):
        """Return the arrays of a model that depends on the step alone."""
        random = np.random.default_rng(step)
        return {
            "hidden": random.uniform(-1, 1, (len(self._x[0]), WIDTH)),
            "output": random.uniform(-1, 1, (WIDTH, self._classes)),
        }

    def _numbers(self, model):
        """Compute accuracy and loss in Python's own floats, one example after the other."""
        hidden, output = (list(zip(*model[name].tolist(), strict=True)) for name in ("hidden", "output"))
        correct, losses = 0, []
        for x, y in zip(self._x, self._y, strict=True):
            layer = [max(0.0, _dot(x, weights)) for weights in hidden]
            powers = [math.exp(_dot(layer, weights)) for weights in output]
            correct += powers.index(max(powers)) == y
            losses.append(math.log(math.fsum(powers) / powers[y]))
        return {"correct": correct, "examples": len(losses), "loss": math.fsum(losses) / len(losses)}


def _dot(values, weights):
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True))
