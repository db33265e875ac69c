"""The plain numpy task, whose data go wrong after two batches as FAULT says: `raise` on the last rank, or `hang`."""

import os
import threading

import numpy_plain as plain

from sidecar import EvalSet, Shard

FAULT = os.environ["FAULT"]
AT = 2 * plain.BATCH * 2  # each of two ranks has done two batches when it comes here


def examples(shard: Shard):
    """Yield this rank's examples until something goes wrong."""
    for number, example in enumerate(zip(plain.X, plain.Y, strict=True)):
        if number == AT and FAULT == "hang":
            threading.Event().wait()
        if number == AT and shard.rank == shard.world_size - 1:
            raise ValueError(f"example {number} is unreadable")
        if number % shard.world_size == shard.rank:
            yield example


def task():
    """Return the plain task with data that fail or hang after two batches."""
    return plain.task_on(EvalSet(examples))
