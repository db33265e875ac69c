"""The plain numpy task with the same examples as two sets: a slow one, and one that is held up at the gate."""

import time
from dataclasses import replace

import numpy as np
import numpy_plain as plain
from gate import GATE, pass_by

SECONDS = 0.3  # for each batch of the slow set, which two workers evaluate in two seconds


def numbered(is_slow):
    """Return a source of all examples with their numbers."""
    x = {"number": np.arange(plain.EXAMPLES), "slow": np.full(plain.EXAMPLES, is_slow), "x": plain.X}
    return lambda: (x, plain.Y)


def predict(model, batch):
    """Return probabilities, and note each batch of the slow set."""
    if batch["slow"][0]:
        with (GATE / "slow").open("a") as file:
            file.write(f"{batch['number'][0]}\n")
        time.sleep(SECONDS)
    elif batch["number"][0] >= 3 * plain.BATCH:
        pass_by("evaluate")
    return plain.predict(model, batch["x"])


def task():
    """Return the plain task on both sets."""
    sets = {"slow": numbered(is_slow=True), "gated": numbered(is_slow=False)}
    return replace(plain.task(), eval_sets=sets, predict=predict)
