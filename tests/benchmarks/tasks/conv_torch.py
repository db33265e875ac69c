"""The net, the data and the batches of `conv`, with PyTorch."""

import torch
from conv_data import BATCH, CLASSES, arrays
from torch import nn

from sidecar import Task
from sidecar.metrics import Accuracy


def conv_net():
    """Return a convolutional network of 15,000 weights."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def tensors():
    x, y = arrays()
    return torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y).long()


def task():
    return Task(
        build_model=conv_net,
        eval_sets={"test": tensors},
        metrics=lambda: [Accuracy()],
        loss=nn.CrossEntropyLoss(),
        batch_size=BATCH,
    )
