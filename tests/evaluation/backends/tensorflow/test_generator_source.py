"""Make datasets of iterators, which start anew for every pass."""

import numpy as np
import pytest
from evaluation.data.sources_of_files import contents, generate

pytestmark = pytest.mark.tensorflow


def test_generator_is_what_its_arrays_are(batches):
    """Types and shapes are the first example's; sharded and fingerprinted like any stream."""
    x = {
        "n": np.stack([np.arange(10), np.ones(10)], 1).astype("float32"),
        "word": [f"word {n}" for n in range(10)],
    }
    arrays = (x, np.arange(10) % 3, np.full(10, 0.5))
    expected = batches(lambda: arrays).read(lambda: None)
    for source in (generate, lambda: iter(list(generate())), lambda: (each for each in generate())):
        for rank in range(2):
            made = batches(source, rank=rank, ranks=2, cache=0)
            assert made.first()[0]["n"].shape == (4, 2)
            assert made.read(lambda: None).fingerprint == expected.fingerprint
            own = [[batch[0]["word"].numpy().tolist() for *_, batch in made.own()] for _ in range(2)]
            assert own[0] == own[1]
            assert own[0][0][0] == [b"word 0", b"word 4"][rank]


def test_generator_starts_anew_for_every_reading(batches):
    """Once to learn its types, then for each reading; no more where all fits into memory."""
    for cache, starts in ((1 << 20, 3), (0, 5)):
        started = []

        def source(started=started):
            started.append(1)
            yield from zip(range(10), range(10), strict=True)

        made = batches(source, cache=cache)
        made.first()
        assert contents(made) == contents(made)
        assert len(started) == starts


def test_generators_that_yield_batches(batches):
    """Then the number of examples is free, and the last batch may be short."""

    def source():
        for start in (0, 4, 8):
            numbers = np.arange(start, min(start + 4, 10))
            yield numbers, numbers

    made = batches(source, batch_size=None)
    assert [x for _, x, _ in contents(made)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert made.spec[0].shape.as_list() == [None]


def test_generator_that_shards_itself(batches):
    """It is told its shard each time."""

    def source(shard):
        return ((number, number) for number in range(10) if shard.owns(number))

    assert [x for _, x, _ in contents(batches(source, rank=1, ranks=2))] == [[1, 3, 5, 7], [9]]


def test_iterators_that_yield_everything_once_only(refusal):
    """The same iterator again, or what is made of it: found out before a number exists."""
    once = iter([(number, number) for number in range(10)])
    kind, message = refusal(lambda: once)
    assert (kind, "returns the same iterator each time it is called" in message) == ("task_error", True)
    for count in (5, 200):
        once = iter([(number, number) for number in range(count)])
        kind, message = refusal(lambda once=once: map(tuple, once))
        assert kind == "stream_differs"
        assert "let a generator start again whenever its function is called" in message


@pytest.mark.parametrize(
    ("elements", "words"),
    [
        ([], "is empty: its iterator yields no example"),
        ([([1], 0), ([1, 2], 0)], "element 1 of its iterator is (int64(2,), int64()), the first was (int64(1,)"),
        ([(0, 0), (1, 0.5)], "element 1 of its iterator is (int64(), float64()), the first was (int64(), int64())"),
        ([({"a": 1}, 0), ({"b": 1}, 0)], "is ({'b': int64()}, int64()), the first was ({'a': int64()}, int64())"),
        ([([[1], [1, 2]], 0)], "its iterator yields something that is not an array"),
    ],
)
def test_generators_that_cannot_be_used(refusal, elements, words):
    """Name the element and the first one."""
    kind, message = refusal(lambda: (each for each in elements))
    assert kind == "task_error"
    assert words in message
