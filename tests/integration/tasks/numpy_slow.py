"""The plain numpy task with data that take a second to read: 103 times 10 ms."""

import time

import numpy_plain as plain

from sidecar import EvalSet

PAUSE_SECONDS = 0.01


def examples():
    """Yield one example after the other, slowly."""
    for example in zip(plain.X, plain.Y, strict=True):
        time.sleep(PAUSE_SECONDS)
        yield example


def task():
    """Return the plain task with examples that come slowly."""
    return plain.task_on(EvalSet(examples, examples=plain.EXAMPLES))
