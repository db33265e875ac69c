"""The plain numpy task, and the same data again under a name that takes part in every second evaluation only."""

from dataclasses import replace

import numpy_plain as plain

from sidecar import EvalSet


def rare_set():
    """Return the data of the plain task."""
    return plain.X, plain.Y


def task():
    """Return the plain task with a second set, which takes part in every second evaluation."""
    whole = plain.task()
    return replace(whole, eval_sets={**whole.eval_sets, "rare": EvalSet(rare_set, every_nth=2)})
