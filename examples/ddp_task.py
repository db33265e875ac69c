"""Define the task that evaluates what ddp_train.py and dcp_train.py save.

    sidecar run ckpts --task ddp_task.py:task --once

Real handwritten digits of scikit-learn are the data.
"""

from torch import nn
from torch_digits import digits

from sidecar import Task
from sidecar.metrics import Accuracy


def build_model() -> nn.Module:
    """Return a network for images of 8 x 8 pixels."""
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10))


def task() -> Task:
    """Return the task."""
    return Task(
        build_model=build_model,
        eval_sets={"test": lambda: digits(training=False)},
        metrics=lambda: [Accuracy()],
        loss=nn.CrossEntropyLoss(),
        batch_size=32,
    )
