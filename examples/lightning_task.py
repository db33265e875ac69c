"""Define the task that evaluates what lightning_train.py saves, by the module's own validation_step.

    sidecar run ckpts --task lightning_task.py:task --once

Real handwritten digits of scikit-learn are the data.
"""

from typing import Any

import pytorch_lightning as lightning
import torch
from torch import nn
from torch_digits import digits
from torchmetrics.classification import MulticlassAccuracy

from sidecar import Task


class Digits(lightning.LightningModule):
    """Learns digits. Nothing in it is written for the evaluation beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10))
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: Any) -> None:
        """Log the loss, and the accuracy as a metric: its number is that of all examples."""
        images, labels = batch
        logits = self.net(images)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels))
        self.accuracy.update(logits, labels)
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), 0.003)


def task() -> Task:
    """Return the task: without metrics and loss, what validation_step logs is measured."""
    return Task(build_model=Digits, eval_sets={"test": lambda: digits(training=False)}, batch_size=32)
