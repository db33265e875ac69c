"""The task of `sidecar demo --framework torch`, and the data and the model that its training uses.

Try it on any checkpoint of the demo:

    sidecar eval sidecar-demo/checkpoints/step-960.pt --task sidecar/commands/demo/digits_torch.py:task --replicas 2
"""

from typing import Any, Final

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from sidecar import Task
from sidecar.metrics import Accuracy

TRAINING_EXAMPLES: Final = 1400
"""The training examples out of 1,797. The other 397 are held out: a prime number, so that neither the number of workers
nor a batch size divides it."""


def build_model() -> nn.Module:
    """Return a convolutional network for images of 8 x 8 pixels, which returns 10 logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(288, 10),
    )


def training_set() -> Any:
    """Return 1,400 digits as pairs of image and label."""
    images, labels = _digits()
    return TensorDataset(images[:TRAINING_EXAMPLES], labels[:TRAINING_EXAMPLES])


def test_set() -> Any:
    """Return the 397 other digits as pairs of image and label."""
    images, labels = _digits()
    return TensorDataset(images[TRAINING_EXAMPLES:], labels[TRAINING_EXAMPLES:])


def task() -> Task:
    """Return the task: `--task digits_torch.py:task` names this function."""
    return Task(
        build_model=build_model,
        eval_sets={"test": test_set},
        metrics=lambda: [Accuracy()],
        loss=nn.CrossEntropyLoss(),
        batch_size=32,
    )


def _digits() -> tuple[Any, Any]:
    """Return images (1797, 1, 8, 8) with values from 0 to 1, and labels (1797,).

    Both are shuffled with a fixed seed: the file is sorted by writer, and every process must see the same order.
    """
    digits = load_digits()
    order = np.random.default_rng(seed=1).permutation(len(digits.target))
    images = torch.from_numpy(digits.images[order, np.newaxis] / 16).float()
    return images, torch.from_numpy(digits.target[order])
