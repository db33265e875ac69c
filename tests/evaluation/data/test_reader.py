"""Read sets as streams of whole batches, with a fingerprint of all of them."""

import pytest
from evaluation.data.streams import contents

pytestmark = pytest.mark.tensorflow


def test_whole_batches_go_round(batches, numbers):
    """Batch b belongs to rank b mod n, and holds the same examples for any n."""
    whole = contents(batches(numbers()))
    assert whole == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [contents(batches(numbers(), rank=rank, ranks=2)) for rank in (0, 1)] == [[whole[0], whole[2]], [whole[1]]]
    assert contents(batches(numbers(), rank=3, ranks=4)) == []


@pytest.mark.parametrize("cache", [0, 100, 1 << 20])
def test_streams_and_ticks(batches, numbers, cache):
    """All ranks read the same stream, ticking at every batch; what is kept changes nothing."""
    streams, parts = [], []
    for rank in range(2):
        ticks = []
        made = batches(numbers(), rank=rank, ranks=2, cache=cache)
        streams.append(made.read(lambda ticks=ticks: ticks.append(1)))
        assert len(ticks) == 3
        assert made.read(lambda: pytest.fail("it was read already")) is streams[-1]
        parts.append([contents(made) for _ in range(3)])
    assert len({each.fingerprint for each in streams}) == 1
    assert [(each.batches, each.examples, each.own_batches) for each in streams] == [(3, 10, 2), (3, 10, 1)]
    assert parts == [[[[0, 1, 2, 3], [8, 9]]] * 3, [[[4, 5, 6, 7]]] * 3]


def test_fingerprint_tells_contents_and_order(batches):
    """Other values, another order, another type or other texts: another fingerprint."""
    y = [0, 1, 2]
    sources = [
        ([1, 2, 3], y),
        ([1, 3, 2], y),
        ([1.0, 2.0, 3.0], y),
        (["a", "bc", "d"], y),
        (["ab", "c", "d"], y),
    ]
    found = [batches(lambda source=source: source).read(lambda: None).fingerprint for source in sources]
    assert len(set(found)) == len(sources)
    assert batches(lambda: list(sources[0])).read(lambda: None).fingerprint == found[0]


def test_read_from_memory_or_not(batches, digits):
    """Read once what fits, else for every checkpoint; the first batch needs one more reading."""
    del digits
    import tensorflow as tf

    def counting(times):
        def source():
            def generate():
                times.append(1)
                yield from ((number, number) for number in range(10))

            spec = tf.TensorSpec((), tf.int64)
            return tf.data.Dataset.from_generator(generate, output_signature=(spec, spec))

        return source

    for cache, readings in ((1 << 20, 2), (0, 4)):
        times = []
        made = batches(counting(times), cache=cache)
        made.first()
        made.read(lambda: None)
        assert contents(made) == contents(made)
        assert len(times) == readings


def test_broken_off_evaluation_is_not_kept_twice(batches, numbers):
    """A prepared set whose evaluation ends in the middle starts from the beginning the next time."""
    from sidecar.evaluation.task import EvalSet

    made = batches(EvalSet(numbers(), prepare=lambda x, y: (x, y)))
    made.read(lambda: None)
    running = made.own()
    next(running)
    running.close()
    assert contents(made) == contents(made) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_data_that_change_between_checkpoints(refusal, tmp_path):
    """Data that are not kept in memory are compared with the data of the first reading."""
    import tensorflow as tf

    file = tmp_path / "lines.txt"
    file.write_text("a\nb\nc\nd\n")

    class Changing:
        """Appends to the file whenever a dataset is at its end."""

        def __call__(self):
            def generate():
                yield from file.read_text().split()
                file.write_text(file.read_text() + "more\n")

            lines = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec((), tf.string))
            return lines.map(lambda each: (each, each))

    kind, message = refusal(Changing(), batch_size=2, cache=0)
    assert (kind, "differs from the first time that it was read: its files have changed" in message) == (
        "stream_differs",
        True,
    )


def test_endless_repeat(refusal, numbers):
    """An endless set is refused before it is read."""
    kind, message = refusal(lambda: numbers()().repeat())
    assert (kind, "repeats for ever: remove .repeat(), or add .take(n)" in message) == ("task_error", True)


def test_endless_in_disguise(refusal, numbers):
    """Where TensorFlow cannot tell that a set is endless, the number that the task expects ends it."""
    from sidecar.evaluation.task import EvalSet

    def source():
        return numbers()().repeat().filter(lambda x, _: x >= 0)

    kind, message = refusal(EvalSet(source, examples=25))
    assert (kind, message) == ("count", "eval set 'test' has more than 25 examples, EvalSet says 25")


def test_rounds_without_end(refusal, numbers):
    """Without that number, the same batches in the same order many times end it."""

    def source():
        return numbers()().repeat().filter(lambda x, _: x >= 0)

    kind, message = refusal(source)
    assert (kind, "more than 20 times, and is taken for endless: let it end after one round" in message) == (
        "count",
        True,
    )


def test_fewer_than_expected(refusal, numbers):
    """Fewer examples than EvalSet says: a count error with both numbers."""
    from sidecar.evaluation.task import EvalSet

    kind, message = refusal(EvalSet(numbers(), examples=12))
    assert (kind, message) == ("count", "eval set 'test' has 10 examples, EvalSet says 12")


def test_empty(refusal, numbers):
    """An eval set without examples is a task error that names the set."""
    kind, message = refusal(lambda: numbers()().take(0))
    assert (kind, message) == ("task_error", "eval set 'test' is empty: it has no example to evaluate")
