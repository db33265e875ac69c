"""A tiny classifier of numpy arrays on 103 examples: `plain` for `framework = "python"`."""

import sys

import numpy as np

from sidecar import Task
from sidecar.metrics import Accuracy, LogLoss

EXAMPLES, FEATURES, CLASSES = 103, 4, 3
BATCH = 8  # the last one is short, and neither 2 nor 3 workers divide 13

_random = np.random.default_rng(7)
X = _random.normal(size=(EXAMPLES, FEATURES))
Y = _random.integers(0, CLASSES, EXAMPLES)


def load(path):
    """Return the arrays of a model, and write a line into the worker's log."""
    sys.stdout.write("MODEL LOADED\n")
    with np.load(path) as file:
        return dict(file)


def predict(model, x):
    """Return probabilities: one hidden layer with ReLU, then softmax."""
    logits = np.maximum(x @ model["hidden"], 0) @ model["output"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def metrics():
    """Return metrics under the names of `plain`."""
    return [Accuracy(), LogLoss(name="loss")]


def task_on(source):
    """Return the task with other data."""
    return Task(load=load, predict=predict, eval_sets={"test": source}, metrics=metrics, batch_size=BATCH)


def task():
    """Return the task that evaluates all examples."""
    return task_on(lambda: (X, Y))
