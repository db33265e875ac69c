"""Models whose accuracy stands in their file, for tests that need daemons at work and no framework.

A checkpoint is a JSON file `{"right": PERCENT}`. GRADED_BATCH_SECONDS says how long each batch takes.
"""

import json
import os
import time
from pathlib import Path

import numpy as np

from sidecar import Task
from sidecar.metrics import Accuracy, LogLoss

EXAMPLES, CLASSES, BATCH = 400, 10, 20
BATCH_SECONDS = float(os.environ.get("GRADED_BATCH_SECONDS", "0"))
NUMBERS = np.arange(EXAMPLES)
LABELS = NUMBERS % CLASSES


def load(path):
    """Return the percentage of examples that are classified rightly."""
    return json.loads(Path(path).read_text())["right"]


def predict(right, numbers):
    """Return probabilities: 0.91 for the class that is guessed, 0.01 for each of the others."""
    time.sleep(BATCH_SECONDS)
    guessed = np.where(numbers % 100 < right, numbers, numbers + 1) % CLASSES
    return 0.01 + 0.9 * np.eye(CLASSES)[guessed]


task = Task(
    load=load,
    predict=predict,
    eval_sets={"test": lambda: (NUMBERS, LABELS)},
    metrics=lambda: [Accuracy(), LogLoss(name="loss")],
    batch_size=BATCH,
)
