"""Do as `marked`, with PyTorch: an evaluation with a second of sleep for two workers that tells when it begins."""

import os
import time
from pathlib import Path

import torch
from dense_torch import BATCH, build_model
from torch import nn
from torch.utils.data import Dataset

from sidecar import Task
from sidecar.metrics import Accuracy

EXAMPLES = 50 * BATCH
SECONDS = 0.0025
MARKS = Path(os.environ["MARKS"])


class Marked(Dataset):
    """Add a line with `time.monotonic()` to the file MARKS when the second batch is read."""

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, number):
        if number == BATCH:
            with MARKS.open("a") as marks:
                marks.write(f"{time.monotonic()}\n")
        time.sleep(SECONDS)
        return torch.full((8,), float(number % 7)), number % 4


def task():
    return Task(
        build_model=build_model,
        eval_sets={"test": Marked},
        metrics=lambda: [Accuracy()],
        loss=nn.CrossEntropyLoss(),
        batch_size=BATCH,
    )
