"""Define metrics of your own: how often the right digit is one of the two most likely ones, and by how much it leads.

    sidecar eval ckpts --task own_metric_task.py:task --replicas 2

Give a function that returns one value for each example, never a mean over a batch. The package adds the values up
exactly, over all workers.
"""

import numpy as np
from digits_task import build_model, test_set

from sidecar import Task
from sidecar.metrics import Accuracy, Mean


def among_two(y: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return whether the label is one of the two most likely classes. Shapes: (n,), (n, 10), result (n,)."""
    two = np.argsort(predictions, axis=1)[:, -2:]
    among: np.ndarray = (two == y[:, np.newaxis]).any(axis=1)
    return among


def margin(y: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return the probability of the label minus the probability of the most likely other class."""
    rows = np.arange(len(y))
    others = predictions.copy()
    others[rows, y] = -np.inf
    return predictions[rows, y] - others.max(axis=1)


def task() -> Task:
    """Return the task: metrics of this package and of your own next to each other."""
    return Task(
        build_model=build_model,
        eval_sets={"test": test_set},
        metrics=lambda: [
            Accuracy(),
            Mean(among_two, name="among_two", goal="max"),  # a bool for each example: a Wilson interval
            Mean(margin, name="margin", goal="max"),
        ],
        batch_size=64,
    )
