"""The plain numpy task, going wrong as the file MOOD says: one word for each worker that builds it, the last stays."""

import itertools
import os
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy_plain as plain

from sidecar import EvalSet
from sidecar.metrics import Accuracy

NUMBERS = list(range(plain.CLASSES))
FILE = Path(os.environ["MOOD"])


def now():
    """Return the mood of this moment."""
    return FILE.read_text().split()[0]


@cache
def at_birth():
    """Return the mood in which this worker built the task; the next worker finds the next mood."""
    first, *others = FILE.read_text().split()
    if others:
        FILE.write_text(" ".join(others))
    return first


def moody_set():
    """Return the data as the mood has them."""
    mood = at_birth()
    if mood == "empty":
        return plain.X[:0], plain.Y[:0]
    examples = list(zip(plain.X, plain.Y, strict=True))
    if mood == "unseeded":
        random.shuffle(examples)
        return iter(examples)
    if mood == "endless":
        return itertools.cycle(examples)
    return ((x, look_up(y)) for x, y in examples)


def look_up(y):
    """Return the label, or fail."""
    return NUMBERS[y + (len(NUMBERS) if now() == "dataset" else 0)]


class MoodyAccuracy(Accuracy):
    """Fails where a metric gets its first batch."""

    def add(self, states, batch):
        """Count a batch, or fail if that is the mood."""
        if at_birth() == "metric":
            raise ZeroDivisionError("this metric had a bad day")
        super().add(states, batch)


def task():
    """Return the plain task with data and a metric that fail as the mood says."""
    source = EvalSet(moody_set, examples=plain.EXAMPLES)
    return replace(plain.task_on(source), metrics=lambda: [MoodyAccuracy()])
