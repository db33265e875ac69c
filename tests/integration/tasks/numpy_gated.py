"""The plain numpy task, held up at the gate: in the middle of its data, and when the sums are known."""

from dataclasses import replace

import numpy as np
import numpy_plain as plain
from gate import pass_by

from sidecar.metrics import Accuracy


def predict(model, batch):
    """Return probabilities; each rank has done a batch, and has another to do, when it comes to the gate."""
    if batch["number"][0] >= 3 * plain.BATCH:
        pass_by("evaluate")
    return plain.predict(model, batch["x"])


class Share(Accuracy):
    """The accuracy once more, which each rank computes after the last sum."""

    def compute(self, states):
        """Return the number, after the gate."""
        pass_by("conclude")
        return super().compute(states)


def task():
    """Return the plain task with a `predict` that waits at a gate."""
    numbered = {"number": np.arange(plain.EXAMPLES), "x": plain.X}
    gated = plain.task_on(lambda: (numbered, plain.Y))
    return replace(gated, predict=predict, metrics=lambda: [*plain.metrics(), Share(name="share")])
