"""scikit-learn models of the real digits, loaded by joblib; held up at a gate where a test wants it.

A worker that predicts while GATE holds a file `hold` reports it by a file `at-PID` and waits until `hold` is gone.
"""

import os
import time
from pathlib import Path

import joblib
from sklearn.datasets import load_digits

from sidecar import EvalSet, Task
from sidecar.metrics import Accuracy, LogLoss, Mean, TopK

FIRST, BATCH = 1200, 64
GATE = os.environ.get("GATE")


def data():
    """The digits that no model learned from."""
    digits = load_digits()
    return digits.data[FIRST:] / 16, digits.target[FIRST:]


def examples():
    """The same, one after the other."""
    yield from zip(*data(), strict=True)


def predict(model, x):
    """Return the probabilities of the ten digits, and wait while the gate is closed."""
    if GATE and Path(GATE, "hold").exists():
        Path(GATE, f"at-{os.getpid()}").touch()
        while Path(GATE, "hold").exists():
            time.sleep(0.02)
    return model.predict_proba(x)


task = Task(
    load=joblib.load,
    predict=predict,
    eval_sets={"test": data, "stream": EvalSet(examples, examples=597)},
    metrics=lambda: [Accuracy(), TopK(3), LogLoss(), Mean(lambda _, p: p.max(axis=1), name="confidence")],
    batch_size=BATCH,
    predictions=True,
)
