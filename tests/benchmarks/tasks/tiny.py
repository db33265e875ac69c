"""A model of one number, which is the text of its file: what an evaluation costs is the daemon's own work."""

from pathlib import Path

import numpy as np

from sidecar import Task
from sidecar.metrics import Accuracy

X = np.arange(16, dtype="float64").reshape(16, 1)
Y = np.arange(16) % 2


def load(path):
    """Return the number that a checkpoint consists of."""
    return int(Path(path).read_text())


def predict(model, x):
    """Return classes that are all right for an even number, and all wrong for an odd one."""
    return np.stack([(x[:, 0] + model) % 2 == 0, (x[:, 0] + model) % 2 == 1], axis=1).astype("float64")


def task():
    """Return a task that evaluates as little as possible."""
    return Task(
        load=load, predict=predict, eval_sets={"test": lambda: (X, Y)}, metrics=lambda: [Accuracy()], batch_size=16
    )
