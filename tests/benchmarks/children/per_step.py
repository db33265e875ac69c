"""One rank of a loop with an all-reduce in every step: `per_step.py RANK ADDRESS ADDRESS`."""

import sys
import time

import numpy as np
from answers import serve

from sidecar.evaluation.backends.tensorflow.backend import TensorFlowBackend
from sidecar.protocol.messages import Join
from sidecar.protocol.records import Member

rank, *addresses = sys.argv[1:]
members = tuple(Member(number, f"node-{number}", f"worker-{number}", each) for number, each in enumerate(addresses))
join = Join(
    group="group", members=members, rank=int(rank), task="none", framework="tensorflow", search_path=".", threads=1
)
collective = TensorFlowBackend().join(join)
metric = np.ones(2, np.int64)  # a total and a count


def loop(steps):
    begin = time.monotonic()
    for _ in range(steps):
        collective.sum(metric)
    return {"seconds": time.monotonic() - begin}


serve(loop)
