"""Data that a script shuffles comes in the same order on each rank, and whenever it is read."""

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("repeatable")]


@pytest.fixture
def repeatable(kerases):
    """Return what a worker process does before it imports a task."""
    from sidecar.evaluation.backends.tensorflow.shuffling import make_repeatable

    with make_repeatable(*kerases):
        yield


@pytest.fixture
def kerases():
    import keras
    import tf_keras

    return keras, tf_keras


def read(dataset):
    return [np.asarray(each).tolist() for element in dataset for each in element]


@pytest.mark.parametrize("seed", [None, 7])
def test_a_shuffle_is_the_same_in_each_reading(seed):
    """With a seed or without, as two ranks make it, and in another order than the data."""
    import tensorflow as tf

    made = [tf.data.Dataset.range(100).shuffle(100, seed).batch(10) for _ in range(2)]
    first, *others = [[int(each) for batch in one for each in batch] for one in (*made, *made)]
    assert others == [first] * 3
    assert sorted(first) == list(range(100)) != first


@pytest.mark.parametrize("which", [0, 1], ids=["keras 3", "tf_keras"])
def test_readers_of_keras_give_each_rank_the_same_order(kerases, tmp_path, which):
    """They list files in an order that numpy's global generator decides, which differs in each process."""
    for kind in ("cats", "dogs"):
        (tmp_path / kind).mkdir()
        for number in range(20):
            (tmp_path / kind / f"{number}.txt").write_text(f"{kind} {number}")
    utils = kerases[which].utils
    ranks = []
    for rank in range(2):
        np.random.seed(rank)  # noqa: NPY002 - it is this generator that Keras asks
        ranks.append(utils.text_dataset_from_directory(str(tmp_path), batch_size=8))
        x = np.arange(90.0)
        ranks.append(utils.timeseries_dataset_from_array(x[:-3], x[3:], sequence_length=3, batch_size=7, shuffle=True))
    texts, series, other_texts, other_series = map(read, ranks)
    assert (texts, series) == (other_texts, other_series) == (read(ranks[0]), read(ranks[1]))


def test_a_reader_that_splits_still_asks_for_a_seed(kerases, tmp_path):
    """The seed decides which files are the training's: Keras refuses to guess, and so is it here."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").write_text("1")
    for library in kerases:
        with pytest.raises(ValueError, match="seed"):
            library.utils.text_dataset_from_directory(str(tmp_path), validation_split=0.5, subset="validation")


def test_all_names_of_a_reader_mean_the_same(kerases):
    """`tf.keras.utils` and `keras.utils` are two modules."""
    import tensorflow as tf

    own = kerases[0].utils.text_dataset_from_directory
    assert own.__wrapped__ is not None
    assert tf.keras.utils.text_dataset_from_directory in [each.utils.text_dataset_from_directory for each in kerases]


@pytest.mark.parametrize("kind", ["from_generator", "a generator"])
def test_arrays_that_a_generator_uses_again(batches, kind):
    """TensorFlow reads their memory later, when they may hold the next example already."""
    import tensorflow as tf

    def examples():
        x = np.zeros(64, "float32")
        for number in range(200):
            x[:] = number
            yield x, number

    signature = tf.TensorSpec(64, tf.float32), tf.TensorSpec((), tf.int64)
    source = examples
    if kind == "from_generator":
        source = lambda: tf.data.Dataset.from_generator(examples, output_signature=signature)  # noqa: E731
    for _ in range(3):
        made = batches(source, batch_size=16)
        made.read(lambda: None)
        for *_, (x, y) in made.own():
            assert np.array_equal(x, np.repeat(y.numpy()[:, None], 64, axis=1))
