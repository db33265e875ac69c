"""Accuracies of simulated training runs, and when the early stop would end them."""

import numpy as np

from sidecar.publishing.sinks.early_stop import has_levelled_off

EXAMPLES = 1000
CHECKPOINTS = 60
BEGIN, END = 0.85, 0.95
SHAPES = {"flat": 0.0, "rises": 0.002, "rises, then flat": 0.01}
"""How much the true accuracy rises per checkpoint, from `BEGIN` to at most `END`."""
REST_IS_TWO_POINTS = 40
"""Of a curve that `rises`: the checkpoint after which two of its ten points are still to come."""


def curves(shape, runs, *, seed, redrawn=1.0):
    """Yield the measured accuracies of each run. `redrawn`: the share of answers that a checkpoint draws anew."""
    random = np.random.default_rng(seed)
    true = np.minimum(BEGIN + SHAPES[shape] * np.arange(CHECKPOINTS), END)
    for _ in range(runs):
        right, numbers = random.random(EXAMPLES) < true[0], []
        for accuracy in true:
            right = np.where(random.random(EXAMPLES) < redrawn, random.random(EXAMPLES) < accuracy, right)
            numbers.append(float(right.mean()))
        yield numbers


def stop_of(numbers, patience, *, levels_off=has_levelled_off):
    """Return the evaluation, from 1, after which training is told to stop; None: after none of them."""
    best, since = -np.inf, 0
    for count, number in enumerate(numbers, start=1):
        best, since = (number, 0) if number > best else (best, since + 1)
        if since >= patience and levels_off(numbers[:count], patience, 0.0):
            return count
    return None
