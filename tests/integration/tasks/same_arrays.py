"""Data and weights that two frameworks share: 1,003 examples of 8 numbers in three classes, and two dense layers."""

import numpy as np

from sidecar.metrics import Accuracy, ConfusionMatrix, TopK

GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(1003, 8)).astype(np.float32)
Y = ((X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)).astype(np.int64)
FIRST = GENERATOR.normal(size=(8, 16)).astype(np.float32), GENERATOR.normal(size=16).astype(np.float32)
SECOND = GENERATOR.normal(size=(16, 3)).astype(np.float32), GENERATOR.normal(size=3).astype(np.float32)
BATCH_SIZE = 64


def metrics():
    return [Accuracy(), TopK(2), ConfusionMatrix(classes=3)]
