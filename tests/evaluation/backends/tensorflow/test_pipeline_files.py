"""Pipelines that write files while they are read work in several processes, each with its own files."""

import pytest

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def separate(digits):  # noqa: ARG001 - it imports TensorFlow
    """Files of the calling process, as in a worker."""
    from sidecar.evaluation.backends.tensorflow.pipeline_files import separate_files

    return separate_files


def numbers(dataset):
    return [int(number) for number in dataset]


def test_each_process_has_its_own_cache(tmp_path, separate):
    """Two that read at the same time, the second one another part, as ranks of a set that divides itself."""
    import tensorflow as tf

    name = str(tmp_path / "made" / "cache")
    with separate():
        first = tf.data.Dataset.range(10).shard(2, 0).cache(name)
        reading = iter(first)
        next(reading)
        with separate():
            assert numbers(tf.data.Dataset.range(10).shard(2, 1).cache(filename=name)) == [1, 3, 5, 7, 9]
        assert [0, *map(int, reading)] == numbers(first) == [0, 2, 4, 6, 8]
        assert numbers(tf.data.Dataset.range(3).cache()) == [0, 1, 2]
    assert list((tmp_path / "made").iterdir()) == []


def test_what_a_killed_process_left_is_not_read(tmp_path, separate):
    """Its folder is emptied: a part of a cache, or one of other data."""
    import tensorflow as tf

    (tmp_path / ".sidecar-cache-0" / "old").mkdir(parents=True)
    (tmp_path / ".sidecar-cache-0" / "cache_0.lockfile").write_text("1")
    with separate():
        assert numbers(tf.data.Dataset.range(3).cache(str(tmp_path / "cache"))) == [0, 1, 2]
        assert not (tmp_path / ".sidecar-cache-0" / "old").exists()


def test_saved_data_are_loaded_from_where_they_are(tmp_path, separate):
    """A dataset that this process saved is private to it; datasets that existed before are shared."""
    import tensorflow as tf

    tf.data.Dataset.range(4).save(str(tmp_path / "before"))
    with separate():
        tf.data.Dataset.range(3).save(str(tmp_path / "saved"))
        assert not (tmp_path / "saved").exists()
        assert numbers(tf.data.Dataset.load(str(tmp_path / "saved"))) == [0, 1, 2]
        assert numbers(tf.data.Dataset.load(str(tmp_path / "before"))) == [0, 1, 2, 3]
    assert numbers(tf.data.Dataset.load(str(tmp_path / "before"))) == [0, 1, 2, 3]
