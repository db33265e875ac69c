"""Freed weights leave the process, and freed tensors of batches stay: measured in a process of its own."""

import json
import os
import subprocess
import sys

MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
from sidecar.evaluation.backends.torch.large_blocks import large_blocks_returned

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def left(megabytes):
    before = resident()
    block = np.ones(megabytes << 20, np.uint8)
    guard = np.ones(1 << 18, np.uint8)  # behind it, so that the heap cannot shrink
    del block
    return resident() - before, guard

kept = [left(50)]
with large_blocks_returned():
    kept.append(left(60))
with large_blocks_returned(is_needed=False):
    kept.append(left(70))
print(json.dumps([size >> 20 for size, _ in kept]))
"""


def measured(**environ):
    """MB that stay when a block of 50, 60 or 70 MB is freed: usually, in the context, and in one that is not needed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    words = [sys.executable, "-c", MEASURE]
    return json.loads(subprocess.run(words, env=environment, capture_output=True, timeout=120, check=True).stdout)


def test_only_what_is_made_there_returns_when_it_is_freed():
    """A process that is told to keep what is freed keeps a block that is made elsewhere, also later."""
    kept = str(1 << 30)
    usual, returned, again = measured(MALLOC_MMAP_THRESHOLD_=kept, MALLOC_TRIM_THRESHOLD_=kept)
    assert usual >= 50
    assert returned < 10
    assert again >= 60
