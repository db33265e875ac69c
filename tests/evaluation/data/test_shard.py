"""Tell a task which part of the data is its own."""

import functools

import pytest

from sidecar import EvalSet, Shard


def read(split):
    return split


@pytest.mark.parametrize(
    ("source", "shards_itself"),
    [
        (lambda: 1, False),
        (lambda shard: shard, True),
        (lambda anything: anything, True),
        (lambda split="test": split, False),
        (lambda split="test", *, shard=None: (split, shard), True),
        (lambda *_, **__: 1, False),
        (functools.partial(read, "test"), False),
        (functools.partial(read, split="test"), False),
        (dict, False),
    ],
)
def test_who_wants_to_know_the_shard(source, shards_itself):
    """A source with a parameter that must be given, or one named `shard`; defaults and partials are no such wish."""
    assert EvalSet(source).shards_itself == shards_itself


def test_shard():
    """Batch b belongs to rank b mod n."""
    assert [batch for batch in range(7) if Shard(1, 3).owns(batch)] == [1, 4]
