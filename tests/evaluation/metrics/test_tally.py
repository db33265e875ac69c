"""Add up weights of cells without rounding."""

import numpy as np
from sklearn.metrics import confusion_matrix

from sidecar.evaluation.data.shard import Shard
from sidecar.metrics import ConfusionMatrix, EvalBatch, EvalSetInfo


def test_the_matrix_itself_is_counted_exactly(numerals):
    """It is a state, so whoever reads saved states has it; a row for each actual class."""
    metric = ConfusionMatrix(10)
    states = metric.states(EvalSetInfo(397, Shard(0, 1)))
    metric.add(states, EvalBatch(numerals.y, numerals.predictions))
    guessed = numerals.predictions.argmax(axis=1)
    assert np.array_equal(states["counts"].integers(), confusion_matrix(numerals.y, guessed))
    assert not states["weights"].used().any()
