"""The plain task of PyTorch, held up at the gate: in the middle of its data, and when the sums are known."""

import numpy as np
import numpy_plain as plain
import torch_plain
from gate import pass_by
from numpy_gated import Share


def step(model, batch):
    """Return labels and probabilities; each rank has done a batch, and has another to do, when it comes to the gate."""
    x, y = batch
    if x["number"][0] >= 3 * plain.BATCH:
        pass_by("evaluate")
    return y, model(x["x"])


def task():
    """Return the PyTorch task with a step that waits at a gate."""
    numbered = {"number": np.arange(plain.EXAMPLES), "x": plain.X}
    metrics = lambda: [*plain.metrics(), Share(name="share")]  # noqa: E731 - it is an argument
    return torch_plain.task_on(lambda: (numbered, plain.Y), step=step, metrics=metrics)
