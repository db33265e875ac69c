"""Keep states by keys that only the data tell."""

import numpy as np

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states import ExactSum, KeyedStates, NamedSums


def test_kept_states_come_back():
    """From the file of a worker's saves, and from the sum of all workers."""

    def new():
        return {"sum": ExactSum((2,), "float64"), "named": NamedSums(Shard(0, 1))}

    ranks = [KeyedStates(Shard(rank, 2), new) for rank in range(2)]
    for rank, keys in enumerate(("ab", "bc")):
        for key in keys:
            ranks[rank].of(key)["sum"].add([0.1, rank + 1e-30])
            ranks[rank].of(key)["named"].add({"n": np.int64(3)})
    joined = KeyedStates.from_json(ranks[0].to_json())
    joined.merge(KeyedStates.from_json(ranks[1].to_json()))
    rows = ranks[0].used() | ranks[1].used()
    total = ranks[0].pack(rows) + ranks[1].pack(rows)
    ranks[1].unpack(total, rows)
    assert joined.to_json() == ranks[1].to_json()
    assert [key for key, _ in joined.items()] == ["a", "b", "c"]
    assert joined.of("b")["named"].totals()["n"] == 6
