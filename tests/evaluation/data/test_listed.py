"""A set whose batches are listed: each rank reads a sample and its own batches, and notices what differs."""

import hashlib

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.data.cache import CacheBudget
from sidecar.evaluation.data.listed import sampled
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.task import EvalSet

BATCHES = 40
SIZES = [3] * (BATCHES - 1) + [2]


class _Listed:
    """A source of batches of numbers, which notes what is read; `contents` may change."""

    sharding = "index"

    def __init__(self, shard, sizes=SIZES, name="list"):
        self.shard, self.listed, self.name = shard, sizes, name
        self.contents = [np.full(size, number) for number, size in enumerate(sizes)]
        self.reads = []

    def sizes(self):
        return self.listed

    def fingerprint_of_list(self):
        return hashlib.sha256(f"{self.name} {self.listed}".encode()).hexdigest()

    def chosen(self, numbers):
        for number in numbers:
            self.reads.append(number)
            yield number, self.contents[number]

    def sample(self):
        return next(self.chosen([0]), None)

    def own(self):
        return self.chosen([number for number in range(len(self.contents)) if self.shard.owns(number)])

    def arrays(self, batch):
        return [batch[1]]

    def parts(self, batch):
        return [("input", batch[1])]

    def finite_rows(self, part):
        del part
        return []

    def examples_in(self, batch):
        return len(batch[1])


def opened(rank=0, ranks=1, cache_bytes=0, sizes=SIZES, name="list", **options):
    shard = Shard(rank, ranks)
    source = _Listed(shard, sizes, name)
    eval_set = EvalSet(lambda: None, **options)
    return source, EvalSetReader("test", eval_set, source, shard=shard, budget=CacheBudget(cache_bytes))


def read(reader):
    return reader.read(lambda: None)


def read_again(source, own):
    """What a first evaluation reads after its own batches, which is some of them a second time, in any order."""
    again = source.reads[len(own) :]
    assert source.reads[: len(own)] == own
    assert set(again) <= set(own)
    assert len(again) == len(set(again)) <= 64
    return again


def evaluate(reader):
    return [(number, first) for number, first, _ in reader.own()]


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
    assert sum(stream.own_examples for stream in streams) == sum(SIZES)
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


def test_contents_that_change_are_noticed():
    """Of the first batch at once, of the sample in the first evaluation, and of own batches in the next one."""
    source, reader = opened()
    source.contents[0] = np.zeros(3) - 1
    with pytest.raises(EvaluationError, match="another order"):
        read(reader)

    in_sample = sampled(source.fingerprint_of_list(), BATCHES)
    source, reader = opened()
    read(reader)
    source.contents[in_sample[-1]] = np.zeros(2) - 1
    with pytest.raises(EvaluationError, match="differs from the first time"):
        evaluate(reader)

    source, reader = opened()
    read(reader)
    evaluate(reader)
    evaluate(reader)
    source.contents[next(number for number in range(BATCHES) if number not in in_sample)] = np.zeros(3) - 1
    with pytest.raises(EvaluationError, match="differs from the first time"):
        evaluate(reader)


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


def test_a_check_that_does_not_exist():
    with pytest.raises(TaskError, match="'none'"):
        EvalSet(lambda: None, check="none")


def test_other_contents_of_the_sample_are_noticed():
    """One batch of it is read before each evaluation, another one each time, as long as that is cheap."""
    source, reader = opened(cache_bytes=1 << 20)
    assert not reader.differs()
    read(reader)
    evaluate(reader)
    source.reads.clear()
    reader._sample._cost_seconds = 1.0  # of which 40 batches that are read in no time do not pay for
    assert (reader.differs(), source.reads) == (False, [])
    for number in sampled(source.fingerprint_of_list(), BATCHES):
        reader._sample._cost_seconds = 0.0
        assert not reader.differs()
        assert source.reads.pop() == number
    source.contents = [array + 1 for array in source.contents]
    reader._sample._cost_seconds = 0.0
    assert reader.differs()


def test_a_set_that_divides_itself_has_no_sample():
    """It may be another one each time."""
    source, reader = opened()
    read(reader)
    reader._sample._cost_seconds, source.sharding = 0.0, "own"
    source.contents = [array + 1 for array in source.contents]
    assert not reader.differs()
