"""Show what a worker saves of the model: written in one go after the first time, and always the same to a reader."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow


def keys_and_values(path):
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(path))
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_later_writes_are_as_the_first(tmp_path, digits, library, monkeypatch):
    """The same keys, the same graph, the values of the moment; the model's graph is walked once."""
    del digits
    keras = pytest.importorskip(library)
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.weights import Weights

    model = keras.Sequential([keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
    model(np.zeros((1, 4), "float32"))
    weights = Weights(model)
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
    weights.write(folders[0])
    for variable in model.weights:
        variable.assign(variable + 1.0)
    tf.train.Checkpoint(model=model).write(str(folders[1] / "weights"))
    monkeypatch.setattr(tf.train.Checkpoint, "write", lambda *_: pytest.fail("the graph was walked again"))
    weights.write(folders[2])
    first, expected, found = (keys_and_values(folder / "weights") for folder in folders)
    assert found.keys() == expected.keys() == first.keys()
    for key, value in expected.items():
        assert np.array_equal(found[key], value), key
    restored = keras.models.clone_model(model)
    restored(np.zeros((1, 4), "float32"))
    status = tf.train.Checkpoint(model=restored).read(str(folders[2] / "weights"))
    status.assert_existing_objects_matched()
    for one, other in zip(restored.weights, model.weights, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))


def test_what_is_more_than_variables_is_written_whole(tmp_path, digits):
    """A lookup table is saved by operations of its own: it must not be lost the second time."""
    del digits
    import keras
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.weights import Weights

    model = keras.Sequential([keras.layers.Dense(2)])
    model(np.zeros((1, 3), "float32"))
    model.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    weights = Weights(model)
    for number in (1, 2):
        model.table.insert(tf.constant(["word"]), tf.constant([number], tf.int64))
        folder = tmp_path / str(number)
        folder.mkdir()
        weights.write(folder)
        saved = keys_and_values(folder / "weights")
        assert [value.tolist() for key, value in saved.items() if key.endswith("table-values")] == [[number]]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, in its own writers
def test_what_writes_by_path_writes_into_the_open_folder_and_nowhere_else(tmp_path, digits):
    """TensorFlow and Keras, while a folder above is swapped for a link, and below a name that is a pattern."""
    del digits
    import keras

    from sidecar.evaluation.artifact_writer import ArtifactWriter
    from sidecar.evaluation.backends.tensorflow.weights import Weights

    model = keras.Sequential([keras.layers.Dense(3)])
    model(np.zeros((1, 4), "float32"))
    weights, expected = Weights(model), None
    for number in (1, 2, 3):  # at first the graph is walked, later it is not; and once more for the swap
        root, outside = tmp_path / f"run [{number}]", tmp_path / f"outside {number}"
        outside.mkdir()

        def write(folder, root=root, outside=outside, swaps=number == 3):
            if swaps:
                (root / "evaluations").rename(root / "moved")
                (root / "evaluations").symlink_to(outside)
            weights.write(folder)
            model.save_weights(folder / "model.weights.h5")
            model.save(folder / "model.keras")

        with ArtifactWriter(
            root / "evaluations/ckpt-5@0/plan-1/worker-0-of-1", root, in_parallel=ThreadPoolExecutor(1)
        ) as saves:
            saves.begin(write)
            saves.finish({}, "v")
        place = root / ("moved" if number == 3 else "evaluations") / "ckpt-5@0/plan-1/worker-0-of-1"
        (tmp_path / str(number)).symlink_to(place)  # a name that TensorFlow can read
        names = ["model.keras", "model.weights.h5", "states.json"]
        names += ["weights.data-00000-of-00001", "weights.index"]
        assert sorted(path.name for path in place.iterdir()) == names
        found = keys_and_values(tmp_path / str(number) / "weights")
        expected = expected or found
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], value) for key, value in expected.items())
        assert list(outside.iterdir()) == []
