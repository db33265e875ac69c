"""The plain task of PyTorch with data that take a second to read: 103 times 10 ms."""

import numpy_slow
import torch_plain

from sidecar import EvalSet


def task():
    """Return the PyTorch task with examples that come slowly."""
    return torch_plain.task_on(EvalSet(numpy_slow.examples, examples=numpy_slow.plain.EXAMPLES))
