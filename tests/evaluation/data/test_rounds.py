"""Streams that come again and again, and others that only look so."""

import itertools

import pytest

from sidecar.evaluation.data.reader import Rounds


def found(digests):
    """Return after how many batches a stream is taken for endless, and the batches of its rounds; None if it ends."""
    rounds = Rounds()
    return next(((number, each) for number, digest in enumerate(digests, 1) if (each := rounds.add(digest))), None)


@pytest.mark.parametrize("batches", [1, 2, 7, 99, 250])
def test_the_same_batches_again_and_again(batches):
    """They are found after 20 rounds, or 2,000 batches."""
    stream = itertools.cycle([b"%d" % number for number in range(batches)])
    assert found(stream) == (max(20 * batches, 2000) + 1, batches)


def test_a_round_may_hold_equal_batches():
    """The round is the whole one, not a part that comes again at once."""
    stream = itertools.cycle([b"a", b"a", b"b", b"a", b"a", b"a", b"b"])
    assert found(stream) == (2001, 7)


@pytest.mark.parametrize(
    "stream",
    [
        [b"zeros"] * 2000,
        [b"%d" % (number % 100) for number in range(2000)],
        [b"%d" % number for number in range(3000)],
        [b"%d" % (number % 100) for number in range(1999)] + [b"other"] * 1500,
    ],
    ids=["equal batches", "20 rounds", "different batches", "rounds, then others"],
)
def test_streams_that_end(stream):
    """Few equal batches, few rounds, and rounds that end before something else are no endless stream."""
    assert found(stream) is None


def test_a_stream_that_begins_with_something_else_is_not_noticed():
    """Only rounds from the beginning are compared: such a stream ends at `plan_cap_seconds`."""
    stream = itertools.chain([b"first"], itertools.repeat(b"again", 5000))
    assert found(stream) is None


def test_rounds_that_are_too_long_cost_no_more():
    """Digests of the first batches alone are compared."""
    stream = (b"%d" % (number % 6000) for number in range(130_000))
    assert found(stream) is None
