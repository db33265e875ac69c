"""The net and the data of `dense`, with PyTorch."""

import torch
from dense_data import BATCH, arrays
from torch import nn

from sidecar import Task
from sidecar.metrics import Accuracy


def build_model():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def tensors():
    x, y = arrays()
    return torch.from_numpy(x), torch.from_numpy(y).long()


def task():
    return Task(
        build_model=build_model,
        eval_sets={"test": tensors},
        metrics=lambda: [Accuracy()],
        loss=nn.CrossEntropyLoss(),
        batch_size=BATCH,
    )
