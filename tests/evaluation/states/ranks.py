"""States of several ranks, reduced as a group does it."""

import numpy as np

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states import ExactSum, MinMax, PerExampleValues


def reduced(ranks):
    """Return what every rank holds after the all-reduce."""
    rows = np.sum([state.used() for state in ranks], axis=0) > 0
    total = np.sum([state.pack(rows) for state in ranks], axis=0)
    for state in ranks:
        state.unpack(total, rows)
    return ranks


def sums(parts):
    found = [ExactSum((), "float64") for _ in parts]
    for state, part in zip(found, parts, strict=True):
        state.add_each(np.array(part, np.float64))
    return found


def extremes(reduction, parts):
    found = [MinMax((), "float64", reduction, Shard(rank, len(parts))) for rank in range(len(parts))]
    for state, part in zip(found, parts, strict=True):
        for value in part:
            state.add(np.float64(value))
    return found


def one_by_one(parts):
    examples = sum(map(len, parts))
    found, first = [PerExampleValues(examples) for _ in parts], 0
    for state, part in zip(found, parts, strict=True):
        state.put(first, np.array(part, np.float64))
        first += len(part)
    return found
