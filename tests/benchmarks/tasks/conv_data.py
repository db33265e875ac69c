"""10,000 examples of 32x32x3, or as many as the environment says."""

import os

import numpy as np

EXAMPLES = int(os.environ.get("BENCH_EXAMPLES", "10000"))
BATCH = 64
CLASSES = 10


def arrays():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(EXAMPLES, 32, 32, 3)).astype(np.float32)
    return x, rng.integers(0, CLASSES, EXAMPLES).astype(np.int32)
