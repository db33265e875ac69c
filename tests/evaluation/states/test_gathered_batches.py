"""Gather the contents of batches in the order of the data."""

import json

import numpy as np
import pytest
from evaluation.states.ranks import reduced
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import RecordError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states import GatheredBatches


@given(st.lists(st.binary(max_size=20), max_size=9), st.integers(1, 4))
def test_gathered_batches_are_in_the_order_of_the_data_on_every_rank(contents, ranks):
    """However batches are divided; also through JSON, as the ranks save them."""
    states = [GatheredBatches(Shard(rank, ranks)) for rank in range(ranks)]
    for number, content in enumerate(contents):
        states[number % ranks].put(10 * number, np.frombuffer(content, np.uint8))
    merged = GatheredBatches.from_json(json.loads(json.dumps(states[0].to_json())))
    for state in states[1:]:
        merged.merge(state)
    for state in [*reduced(states), merged]:
        assert [one.tobytes() for one in state.contents()] == contents


def test_gathered_batches_without_numbers_have_an_order_of_their_own():
    """Nobody knows the order of sets that divide themselves, but all numbers of ranks lead to the same."""
    states = [GatheredBatches(Shard(rank, 3)) for rank in range(3)]
    for state, content in zip(states, (b"b", b"c", b"a"), strict=True):
        state.put(None, np.frombuffer(content, np.uint8))
    assert [one.tobytes() for one in reduced(states)[0].contents()] == [b"a", b"b", b"c"]


def test_a_follower_has_no_contents_of_its_own():
    """It packs nothing with the sizes of its leader, and gets what the leader has."""
    leader, follower = (GatheredBatches(Shard(0, 1)) for _ in range(2))
    leader.put(0, np.frombuffer(b"abc", np.uint8))
    rows = leader.used()
    assert not follower.pack(rows).any()
    follower.unpack(leader.pack(rows), rows)
    assert [one.tobytes() for one in follower.contents()] == [b"abc"]


def test_gathered_batches_refuse_too_much_and_the_same_batch_twice():
    """On one rank, and once the sizes of all ranks are known."""
    one, other = (GatheredBatches(Shard(rank, 2), max_bytes=200) for rank in range(2))
    one.put(0, np.zeros(100, np.uint8))
    other.put(0, np.zeros(100, np.uint8))
    with pytest.raises(OverflowError):
        reduced([one, other])
    with pytest.raises(ValueError, match="0"):
        one.merge(other)
    with pytest.raises(OverflowError):
        one.put(100, np.zeros(100, np.uint8))
    with pytest.raises(RecordError):
        GatheredBatches.from_json({"batches": [[0, "?"]]})
