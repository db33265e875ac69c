"""The task of `sidecar demo --framework torch`, and the data and the model that its training uses.

Try it on any checkpoint of the demo:

    sidecar eval sidecar-demo/digits/step-960.pt --task sidecar/commands/demo/digits_torch.py:task --replicas 2
"""

from typing import Any, Final

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from sidecar import Task
from sidecar.metrics import Accuracy

TRAINING_EXAMPLES: Final = 500
"""The training examples: few, so that the network overfits within a minute."""

WRONG_LABELS: Final = 150
"""The training examples whose label is wrong. The network learns the digits first and these errors later, so the best
checkpoint is not the last one."""

HELD_OUT: Final = 397
"""The test examples, all with their own label: a prime number, so that neither the number of workers nor a batch size
divides it."""


def build_model() -> nn.Module:
    """Return a convolutional network for images of 8 x 8 pixels, which returns 10 logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(288, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def training_set() -> Any:
    """Return 500 digits as pairs of image and label, 150 of them with a wrong label."""
    images, labels = _digits()
    wrong = np.random.default_rng(seed=2).integers(1, 10, WRONG_LABELS)
    labels[:WRONG_LABELS] = (labels[:WRONG_LABELS] + torch.from_numpy(wrong)) % 10
    return TensorDataset(images[:TRAINING_EXAMPLES], labels[:TRAINING_EXAMPLES])


def test_set() -> Any:
    """Return 397 other digits as pairs of image and label."""
    images, labels = _digits()
    return TensorDataset(images[-HELD_OUT:], labels[-HELD_OUT:])


def task() -> Task:
    """Return the task: `--task digits_torch.py:task` names this function."""
    return Task(
        build_model=build_model,
        eval_sets={"test": test_set},
        metrics=lambda: [Accuracy()],
        loss=nn.CrossEntropyLoss(),
        batch_size=32,
        predictions=True,
        show=lambda x, _: x,  # the image, for examples that changed
    )


def _digits() -> tuple[Any, Any]:
    """Return images (1797, 1, 8, 8) with values from 0 to 1, and labels (1797,).

    Both are shuffled with a fixed seed: the file is sorted by writer, and every process must see the same order.
    """
    digits = load_digits()
    order = np.random.default_rng(seed=1).permutation(len(digits.target))
    images = torch.from_numpy(digits.images[order, np.newaxis] / 16).float()
    return images, torch.from_numpy(digits.target[order])
