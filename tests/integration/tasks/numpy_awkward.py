"""`plain` of numpy with metrics whose numbers are easily rounded, lost or misread on their way to a reader."""

import numpy as np
from numpy_plain import BATCH, X, Y, load, predict

from sidecar import Task
from sidecar.metrics import Accuracy, LogLoss, Mean

NUMBERS = {
    "third": 1 / 3,
    "sum": 0.1 + 0.2,
    "tiny": 5e-324,
    "small": 2.2250738585072014e-308,
    "huge": 1.7976931348623157e300,
    "whole": 2.0**53,
    "zero": 0.0,
    "infinite": np.inf,
    "undefined": np.nan,
    'odd <b>"name"</b> \\ é': 1e-7,
}


def constant(number):
    """Return a function whose mean is this number: sums are exact, and so is the division of n equal values by n."""
    return lambda y, _: np.full(len(y), number)


def metrics():
    """Return two usual metrics, and one for each awkward number."""
    constants = [Mean(constant(number), name=name, goal="max") for name, number in NUMBERS.items()]
    return [Accuracy(), LogLoss(name="loss"), *constants]


def task():
    """Return the task with a metric for each awkward number."""
    return Task(load=load, predict=predict, eval_sets={"test": lambda: (X, Y)}, metrics=metrics, batch_size=BATCH)
