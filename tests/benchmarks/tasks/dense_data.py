"""Many small batches; how many, the environment says."""

import os

import numpy as np

BATCHES = int(os.environ.get("BENCH_BATCHES", "100"))
BATCH = 16


def arrays():
    rng = np.random.default_rng(3)
    examples = BATCHES * BATCH
    return rng.normal(size=(examples, 8)).astype(np.float32), rng.integers(0, 4, examples).astype(np.int32)
