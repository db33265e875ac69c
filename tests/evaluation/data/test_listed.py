"""A set whose batches are listed: each rank reads a sample and its own batches, and notices what differs."""

import pytest
from evaluation.data.listed_sets import BATCHES, SIZES, evaluate, opened, read, read_again

from sidecar.evaluation.data.listed import sampled
from sidecar.evaluation.failures import EvaluationError


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 50])
def test_each_rank_reads_a_sample_and_its_own_batches(ranks):
    """And knows all counts before; together the ranks read each batch once."""
    streams, places = [], []
    for rank in range(ranks):
        source, reader = opened(rank, ranks)
        streams.append(read(reader))
        assert set(source.reads) == set(sampled(source.fingerprint_of_list(), BATCHES))
        source.reads.clear()
        places += evaluate(reader)
        assert read_again(source, [number for number in range(BATCHES) if number % ranks == rank]) or ranks == 50
        assert reader.examples == sum(SIZES)
    assert sorted(places) == [(number, 3 * number) for number in range(BATCHES)]
    assert len({(stream.fingerprint, stream.batches, stream.examples) for stream in streams}) == 1
    assert (streams[0].batches, streams[0].examples, streams[0].sharding) == (BATCHES, sum(SIZES), "index")
    assert sum(stream.own_batches for stream in streams) == BATCHES


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_only_the_first_batches_are_evaluated(ranks):
    """Their counts are those of the set then, and a number of examples that the task expects is not compared."""
    places, counted = [], set()
    for rank in range(ranks):
        source, reader = opened(rank, ranks, examples=10**6)
        stream = reader.read(lambda: None, 2)
        counted.add((stream.batches, stream.examples, stream.expected))
        source.reads.clear()
        places += evaluate(reader)
        read_again(source, [number for number in range(2) if number % ranks == rank])
    assert sorted(places) == [(0, 0), (1, 3)]
    assert counted == {(2, 6, None)}


def test_the_sample_has_the_first_the_last_and_six_others():
    chosen = {name: sampled(name, 10_000) for name in "abcdefgh"}
    for numbers in chosen.values():
        assert numbers == sorted(set(numbers))
        assert {numbers[0], numbers[-1]} == {0, 9_999}
        assert len(numbers) == 8
    assert len({tuple(numbers) for numbers in chosen.values()}) == len(chosen)
    assert all(sampled("a", few) == list(range(few)) for few in range(1, 9))
    assert all(len(sampled("a", more)) == 8 for more in range(9, 40))


def test_ranks_with_other_data_have_other_fingerprints():
    """Another list, or other contents of a batch of the sample."""
    source, reader = opened()
    expected = read(reader).fingerprint
    assert read(opened(name="another")[1]).fingerprint != expected
    for number in sampled(source.fingerprint_of_list(), BATCHES)[1:]:
        other, changed = opened()
        other.contents[number] = other.contents[number] + 1
        assert read(changed).fingerprint != expected


def test_own_batches_stay_in_memory_if_they_fit():
    source, reader = opened(1, 4, cache_bytes=10_000)
    read(reader)
    places = evaluate(reader)
    source.reads.clear()
    assert evaluate(reader) == places
    assert source.reads == []


@pytest.mark.parametrize("cache_bytes", [0, 10_000])
def test_an_interrupted_first_evaluation(cache_bytes):
    """The next one is the first: it reads all batches, and only its contents are the ones to compare with."""
    source, reader = opened(cache_bytes=cache_bytes)
    read(reader)
    interrupted = reader.own()
    for _ in range(5):
        next(interrupted)
    interrupted.close()
    source.reads.clear()
    assert len(evaluate(reader)) == BATCHES
    read_again(source, list(range(BATCHES)))
    assert len(evaluate(reader)) == BATCHES


def test_a_wrong_number_of_examples_is_noticed_before_they_are_read():
    source, reader = opened(examples=120)
    source.reads.clear()
    with pytest.raises(EvaluationError) as caught:
        read(reader)
    assert caught.value.kind == "count"
    assert len(source.reads) <= 8


def test_a_set_that_divides_itself_has_no_sample():
    """It may be another one each time."""
    source, reader = opened()
    read(reader)
    reader._sample._cost_seconds, source.sharding = 0.0, "own"
    source.contents = [array + 1 for array in source.contents]
    assert not reader.differs()
