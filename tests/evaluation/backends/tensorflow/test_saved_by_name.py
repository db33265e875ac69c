"""Restore what TensorFlow 1 saved by names, or write the line that does."""

import pytest

from sidecar.evaluation.failures import EvaluationError

pytestmark = pytest.mark.tensorflow


def saved_by_name(folder, *, version=None, **values):
    """Write a checkpoint of TensorFlow 1, with an optimizer's values beside."""
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = {name: tf.compat.v1.get_variable(name, initializer=value) for name, value in values.items()}
        session.run([variable.initializer for variable in made.values()])
        form = {} if version is None else {"write_version": version}
        saver = tf.compat.v1.train.Saver(list(made.values()), **form)
        return saver.save(session, str(folder / "model.ckpt"), global_step=7)


def test_saved_by_name(tmp_path):
    """A checkpoint of TensorFlow 1 is restored by names; what it holds besides is named, its optimizer aside."""
    import keras
    import numpy as np

    from sidecar.evaluation.backends.tensorflow.completeness import Exceptions
    from sidecar.evaluation.backends.tensorflow.restore import restore

    kernel, bias = np.arange(12, dtype="float32").reshape(4, 3), np.ones(3, "float32")
    values = {"out/kernel": kernel, "out/bias": bias}
    of_training = {"out/kernel/Adam_1": kernel, "beta1_power": np.float32(1), "global_step": np.int64(7)}
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="out")])
    assert restore(model, saved_by_name(tmp_path / "a", **values, **of_training), None).notes == ()
    assert np.array_equal(model.get_weights()[0], kernel)
    assert np.array_equal(model.get_weights()[1], bias)
    path = saved_by_name(tmp_path / "b", **values, **{"gate/kernel": kernel})
    with pytest.raises(EvaluationError, match="gate/kernel"):
        restore(model, path, None)
    (note,) = restore(model, path, None, Exceptions(ignore=["gate/"])).notes
    assert "left out" in note


def line_of(message):
    """The function in the line that a message proposes."""
    import tensorflow as tf

    text = message.partition("Task(restore=")[2]
    return eval(text[: text.index("for v in model.weights]") + len("for v in model.weights]")], {"tf": tf})


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
def test_saved_by_other_names(library, tmp_path):
    """The line that the message proposes maps names to names; of equal shapes the user has to choose."""
    import importlib

    import numpy as np

    from sidecar.evaluation.backends.tensorflow.restore import restore

    of = importlib.import_module(library)
    kernel, bias = np.arange(9, dtype="float32").reshape(3, 3), np.ones(3, "float32")
    values = {"b/weights": kernel, "a/weights": kernel + 1, "fc/biases": bias}
    path = saved_by_name(tmp_path, **values, global_step=np.int64(7))
    first, last = of.layers.Dense(3, use_bias=False, name="first"), of.layers.Dense(3, name="last")
    model = of.Sequential([of.Input((3,)), first, last])
    with pytest.raises(EvaluationError, match="saved by names") as caught:
        restore(model, path, None)
    message = str(caught.value)
    assert "with one name in the place of each 'one of …'" in message
    with pytest.raises(Exception, match="one of a/weights or b/weights"):
        line_of(message)(model, path)
    chosen = message.replace("'first/kernel': 'one of a/weights or b/weights'", "'first/kernel': 'b/weights'")
    line_of(chosen.replace("one of a/weights or b/weights", "a/weights"))(model, path)
    for value, restored in zip((kernel, kernel + 1, bias), model.get_weights(), strict=True):
        assert np.array_equal(value, restored)


def test_saved_by_name_in_a_scope(tmp_path):
    """Estimators put a scope before all names; of two scopes none is taken, and values beside them are named."""
    import keras
    import numpy as np

    from sidecar.evaluation.backends.tensorflow.restore import restore

    kernel, bias = np.arange(12, dtype="float32").reshape(4, 3), np.ones(3, "float32")
    values = {"dnn/logits/kernel": kernel, "dnn/logits/bias": bias}
    of_training = {"dnn/logits/kernel/ExponentialMovingAverage": kernel, "global_step": np.int64(7)}
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="logits")])
    (note,) = restore(model, saved_by_name(tmp_path / "a", **values, **of_training), None).notes
    assert "'dnn' of the checkpoint" in note
    assert np.array_equal(model.get_weights()[0], kernel)
    others = {name.replace("dnn", "target"): value for name, value in values.items()}
    with pytest.raises(EvaluationError, match="saved by names"):
        restore(model, saved_by_name(tmp_path / "b", **values, **others), None)
    with pytest.raises(EvaluationError, match="dnn/gate"):
        restore(model, saved_by_name(tmp_path / "c", **values, **{"dnn/gate": kernel}), None)


def test_first_format_of_tensorflow_1(tmp_path):
    """A single file without an index is read like the later format."""
    import keras
    import numpy as np
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.restore import restore

    kernel = np.arange(12, dtype="float32").reshape(4, 3)
    path = saved_by_name(tmp_path, version=tf.compat.v1.train.SaverDef.V1, **{"out/kernel": kernel})
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, use_bias=False, name="out")])
    assert restore(model, path, None).notes == ()
    assert np.array_equal(model.get_weights()[0], kernel)
