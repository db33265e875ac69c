"""The classifier of `numpy_plain` as a module of PyTorch, on the same data."""

import sys

import numpy_plain
import torch
from torch import nn

from sidecar import Task

WIDTH = 16


class Classifier(nn.Module):
    """One hidden layer with ReLU, then softmax, in float64."""

    def __init__(self):
        super().__init__()
        sys.stdout.write("MODEL BUILT\n")
        self.hidden = nn.Parameter(torch.zeros(numpy_plain.FEATURES, WIDTH, dtype=torch.float64))
        self.output = nn.Parameter(torch.zeros(WIDTH, numpy_plain.CLASSES, dtype=torch.float64))

    def forward(self, x):
        """Return the probabilities of the classes."""
        return torch.softmax(torch.relu(x @ self.hidden) @ self.output, dim=1)


def task_on(source, **changes):
    """Return the task with other data."""
    given = {
        "build_model": Classifier,
        "eval_sets": {"test": source},
        "metrics": numpy_plain.metrics,
        "batch_size": numpy_plain.BATCH,
    }
    return Task(**given | changes)


def task():
    """Return the task that evaluates all examples with PyTorch."""
    return task_on(lambda: (numpy_plain.X, numpy_plain.Y))
