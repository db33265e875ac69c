"""Arrays of files that tests replace; a model is one number, the strength of its noise.

The folder DATA holds `data.npz`. With KIND=mse the labels are numbers, else classes. With KIND=files the set is that of
`sidecar.data`, and with KIND=generator its examples are read one by one.
"""

import os
from pathlib import Path

import numpy as np

from sidecar import Task
from sidecar.data import npz
from sidecar.metrics import MSE, Accuracy

FILE = Path(os.environ["DATA"], "data.npz")
KIND = os.environ.get("KIND", "arrays")


def arrays():
    """Return what the file holds now."""
    with np.load(FILE) as found:
        return found["x"], found["y"]


def examples():
    """The same, one after the other."""
    yield from zip(*arrays(), strict=True)


def predict(model, x):
    """Scores, or the number itself; other noise for each example."""
    if KIND == "mse":
        return x[:, 0] * 3 + model * np.sin(1000 * x[:, 0])
    return x + model * np.sin(999 * x)


task = Task(
    load=lambda path: float(Path(path).read_text()),
    predict=predict,
    eval_sets={"test": {"files": npz(FILE, "x", "y"), "generator": examples}.get(KIND, arrays)},
    metrics=lambda: [MSE() if KIND == "mse" else Accuracy()],
    batch_size=64,
    predictions=True,
)
