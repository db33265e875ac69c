"""Eval sets as streams of whole batches: who gets which, what is kept, and what cannot be evaluated."""

import numpy as np
import pytest
from evaluation.data.streams import contents

pytestmark = pytest.mark.tensorflow


def test_what_does_not_fit_leaves_room_for_others(batches, numbers):
    """A set larger than the cache gives back what it took, so that the next set can have it."""
    from sidecar.evaluation.data.cache import CacheBudget

    budget = CacheBudget(200)
    large, small = (batches(numbers(count), budget=budget) for count in (100, 8))
    for made in (large, small):
        made.read(lambda: None)
    assert contents(large) == contents(large)
    assert len(contents(large)) == 25
    assert budget.left == 200 - 8 * 2 * 8


@pytest.mark.parametrize("cache", [0, 40, 1 << 20])
@pytest.mark.parametrize("batch_size", [4, None])
def test_prepare_own_batches_only(batches, numbers, cache, batch_size):
    """`prepare` is mapped over a rank's own batches alone, and the batches stay what they were."""
    import tensorflow as tf

    from sidecar.evaluation.task import EvalSet

    seen = []

    def look(x):
        seen.append(x.numpy().tolist())
        return x * 10

    def prepare(x, y):
        made = tf.py_function(look, [x], tf.int64)
        made.set_shape(x.shape)
        return made, y

    source = numbers() if batch_size else lambda: numbers()().batch(4)
    made = batches(EvalSet(source, prepare), batch_size=batch_size, rank=1, ranks=2, cache=cache)
    made.read(lambda: None)
    seen.clear()
    assert [batch[0].numpy().tolist() for _, _, batch in made.own()] == [[40, 50, 60, 70]]
    assert sorted(seen) == ([4, 5, 6, 7] if batch_size else [[4, 5, 6, 7]])
    assert contents(made) == [[4, 5, 6, 7]]
    assert made.first()[0].shape[0] == 4


def test_set_that_shards_itself(batches, digits):
    """It is told its shard, and yields zeros to build on where it has nothing."""
    del digits
    import tensorflow as tf

    from sidecar import Shard

    def source(shard: Shard):
        return tf.data.Dataset.range(1).map(lambda each: (each, each)).shard(shard.world_size, shard.rank)

    full, empty = (batches(source, rank=rank, ranks=2) for rank in (0, 1))
    assert (contents(full), contents(empty)) == ([[0]], [])
    assert empty.first()[0].numpy().tolist() == [0]
    assert full.read(lambda: None).fingerprint == ""


@pytest.mark.parametrize("batch_size", [4, 3])
def test_unseeded_shuffle(refusal, numbers, batch_size):
    """A stream in another order each time it is read is refused, with the remedy."""
    kind, message = refusal(lambda: numbers(1000)().shuffle(1000), batch_size=batch_size)
    assert kind == "stream_differs"
    assert "has another order each time that it is read, or other values: shuffle with a seed" in message
    assert "random.seed(index) in __getitem__" in message


def test_seeded_shuffle_that_reshuffles(refusal, batches, numbers):
    """A seed alone is not enough: TensorFlow shuffles anew each time; without that it is fine."""
    assert refusal(lambda: numbers(1000)().shuffle(1000, seed=1))[0] == "stream_differs"
    made = batches(lambda: numbers(1000)().shuffle(1000, seed=1, reshuffle_each_iteration=False), cache=0)
    assert made.read(lambda: None).examples == 1000
    assert contents(made) == contents(made)


def test_list_files(refusal, tmp_path):
    """`list_files` shuffles unless it is told not to."""
    import tensorflow as tf

    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(str(number))
    source = lambda: tf.data.Dataset.list_files(str(tmp_path / "*.txt")).map(lambda each: (each, each))  # noqa: E731
    kind, message = refusal(source)
    assert (kind, "list files with shuffle=False" in message) == ("stream_differs", True)


def test_single_examples_called_batched(refusal, numbers):
    """The error about single examples asks for a batch_size, since Task(batch_size=None) promises batches."""
    kind, message = refusal(numbers(), batch_size=None)
    assert kind == "task_error"
    assert "yields single examples" in message
    assert "if it is not, give a batch_size" in message


def test_images_called_batched(refusal, digits):
    """An image and its one-hot label have different first dimensions: no batch."""
    import tensorflow as tf

    source = lambda: digits.held_out().map(lambda x, y: (x, tf.one_hot(y, 10)))  # noqa: E731
    kind, message = refusal(source, batch_size=None)
    assert kind == "task_error"
    assert "hold [8, 10] examples, they need equally many" in message
    assert "give a batch_size" in message


def test_neither_dataset_nor_arrays(refusal):
    """Something else is named by its type."""
    kind, message = refusal(lambda: 7)
    assert (kind, "expected a tf.data.Dataset, numpy arrays x, (x, y)" in message) == ("task_error", True)
    assert "write" not in message
    kind, message = refusal(lambda: {1, 2})
    assert (kind, "found set: write lambda: iter(…)" in message) == ("task_error", True)


def test_ragged_and_sparse_sets(batches, digits):
    """They are batched, kept and told apart as others are; a rank that has nothing builds on zeros of their kind."""
    del digits
    import tensorflow as tf

    from sidecar import Shard
    from sidecar.evaluation.task import EvalSet

    ragged = tf.RaggedTensor.from_row_lengths([1, 2, 3, 4, 5, 6], [1, 0, 3, 2, 0])
    sparse = tf.sparse.from_dense([[1, 0], [0, 2], [0, 0], [3, 0], [0, 4]])
    arrays = {"ragged": ragged, "sparse": sparse}, [0, 1, 2, 3, 4]
    made = batches(lambda: tf.data.Dataset.from_tensor_slices(arrays), batch_size=2, rank=1, ranks=2)
    made.read(lambda: None)
    for _ in range(2):
        ((number, first, batch),) = made.own()
        assert (number, first, batch[0]["ragged"].to_list()) == (1, 2, [[2, 3, 4], [5, 6]])
        assert tf.sparse.to_dense(batch[0]["sparse"]).numpy().tolist() == [[0, 0], [3, 0]]

    def source(shard: Shard):
        return tf.data.Dataset.from_tensor_slices(arrays).take(1 - shard.rank)

    zeros = batches(EvalSet(source), rank=1, ranks=2).first()[0]
    assert (zeros["ragged"].to_list(), zeros["sparse"].dense_shape.numpy().tolist()) == ([[0]], [1, 2])


def test_examples_that_make_no_batch(refusal, digits):
    """Rows of different lengths, unless they are ragged: told with what to do."""
    del digits
    import tensorflow as tf

    lengths = lambda: tf.data.Dataset.range(1, 10).map(lambda each: (tf.range(each), each))  # noqa: E731
    kind, message = refusal(lengths)
    assert kind == "task_error"
    assert "eval set 'test': its examples have different shapes, so they cannot be batched: pad them" in message


@pytest.mark.parametrize("where", ["array", "iterator", "list"])
def test_masked_values_are_refused(refusal, where):
    """TensorFlow would forget the mask, as numpy does, and count what is below it."""
    masked = np.ma.masked_array(np.arange(8.0), mask=[0, 1] * 4)
    sources = {
        "array": lambda: (np.arange(8.0), masked),
        "iterator": lambda: zip(np.arange(8.0), masked, strict=True),
        "list": lambda: [np.arange(8.0), masked],
    }
    kind, message = refusal(sources[where])
    assert kind == "task_error"
    assert "masked" in message


@pytest.mark.parametrize(("weights", "parts"), [(None, 2), (np.ones(4), None)])
def test_weights_of_a_sequence_are_not_taken_for_labels(batches, refusal, weights, parts):
    """None at the end is what is not given; before the weights it is a mistake."""
    import keras

    class Sequence(keras.utils.PyDataset):
        """A sequence of two batches with labels or weights that may be None."""

        def __len__(self):
            return 2

        def __getitem__(self, number):
            labels = np.zeros(4) if parts else None
            return np.full((4, 3), float(number)), labels, weights

    if parts:
        made = batches(Sequence)
        assert len(made.first()) == parts
    else:
        kind, message = refusal(Sequence)
        assert kind == "task_error"
        assert "None" in message
